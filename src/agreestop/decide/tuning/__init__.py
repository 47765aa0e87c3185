"""Choose and fit on the tuning split: `tune`, `front`, repeated splits, and schedules."""
