"""The commands of `servesim`, one file each: `main(arguments) -> exit status`."""
