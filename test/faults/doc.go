// Package faults puts the running binary through what goes wrong in production: malformed and
// oversized input, peers that stop, die or vanish, metadata services that are down, ports that are
// taken. After each the node must say what happened, have lost nothing, and go on serving others.
// Most input comes from a client that shares no code with the node (internal/testenv/rawte).
package faults
