// Package rest serves a Store over HTTP for people and scripts: objects by PUT, GET (with ranges), HEAD and DELETE
// under /api/v1/objects/{key}, and the paths of upstream's mc_store_rest_server (/api/put, /api/get/{key}, ...), so
// that its users need not change. openapi.json describes both and is served as /api/v1/openapi.json.
//
// It is for convenience: bodies pass through this process's memory, bounded by a budget, the node's
// local_buffer_size. Clients that care for speed use package client or the wheel.
//
// # Config keys
//
// See [Config]; in a node they are in section store.rest.
package rest
