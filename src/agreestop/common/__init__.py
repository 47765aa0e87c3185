"""What every package needs and what belongs to none: input errors, array checks, atomic files, cores."""
