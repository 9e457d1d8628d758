// Package remote holds what the metadata backends that talk to a service share: the life of a
// backend (deadlines of calls, goroutines, Close), one form of error message, addresses, and TLS
// settings.
package remote
