// Package sidebyside is what the scripts have in common that measure our programs beside upstream's: runs in
// changing order, repeated while other programs disturb them, ratios that a machine which slows down does not change,
// and processes that end with the script.
package sidebyside
