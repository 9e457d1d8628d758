// Package redis keeps metadata in a single Redis server, in the keys and raw values that upstream's engines
// use. Use it where Redis is what is there already; etcd reports changes faster.
//
// Config keys: url ("redis://user:p%40ss@host:6379/3", "rediss://" for TLS, or host:port alone), address,
// username, password, db, tls (enabled, ca, cert, key, server_name, insecure_skip_verify), dial_timeout,
// timeout, lease_ttl. What the URL and a key both say must agree. The environment variables MC_REDIS_USERNAME,
// MC_REDIS_PASSWORD and MC_REDIS_DB_INDEX of upstream set username, password and db.
//
// An address without a port means 6379. Upstream's own redis client takes 12001 in that case, so write the
// port where wheels built with redis share the server. A db or password that the server does not accept is an
// error; upstream falls back to db 0.
//
// Foreign writers use plain SET and DEL, which no version counter sees. So a version is the SHA-1 of the
// value, and Commit compares and writes in one Lua script; two equal values are the same version. Watch
// polls every second and yields a reset when anything below the prefix changed, never single events.
// A lease is a time to live on each of its keys, renewed by a script that leaves alone what others have
// overwritten, and a marker key "mooncake/.lease/<id>" by which a flushed or restarted server is noticed.
// A server with an eviction policy may drop keys at any time; use maxmemory-policy noeviction.
//
// Redis Cluster is refused: keys of one commit would live on several servers. An ACL user needs
// "~mooncake/* +get +set +del +exists +mget +scan +eval +evalsha +pexpire", and +select for a db other than 0.
//
// Metrics: none.
package redis
