"""What every package needs: input errors, array checks, atomic files, `.npz` files, hashes, progress, cores."""
