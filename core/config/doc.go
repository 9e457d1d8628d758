// Package config reads the node's one configuration file, mooncake.json or mooncake.yaml, in which
// Mooncake's own flat keys (local_hostname, metadata_server, ...) stand next to nested sections
// (transports, metadata, log, ...).
//
// It is a mechanism: it knows the upstream keys ([Root]) and learns everything else from a [Schema]
// that the composition passes in. It imports no part of the node but the registry.
//
// # Layers
//
// Defaults < file < environment < flags; each key remembers the layer and the place it came from.
// The defaults live in the config structs of their owners, so an empty file means exactly those.
//
// # Strictness
//
//   - Unknown keys, duplicate keys, nulls and wrongly typed values are errors. All problems of a file
//     are reported in one go, each as "file:line:col: key: what", with the nearest known name.
//   - In sections a number is a number. Upstream's flat keys also accept strings for numbers,
//     booleans and sizes, because their users write "0" and "true".
//   - A key that is known but has no effect in this binary is accepted with a warning, never silently.
//   - An environment variable with an invalid value refuses the start, whichever variable it is.
//   - Values of secret keys and passwords inside connection strings appear in no message.
package config
