"""`hebe update`: watch and write the log of online updates."""
