// Package admin is the Store master's HTTP: upstream's paths, bodies, status codes and content types, and ours.
//
// Upstream's: /metrics, /metrics/summary, /health, /role, /ha_status, /leader, /kv_events/status, /query_key,
// /batch_query_keys, /get_all_keys, /get_all_segments, /get_segments_detail, /query_segment,
// /api/v1/segments/status, /api/v1/drain_jobs[/query, /cancel], /api/v1/tenant_quotas, /api/v1/remove_all. An unknown
// path and a wrong method are 404 with the text "404 Not Found".
//
// Ours: /healthz, /readyz, /version, /api/v1/clients (who speaks which version), /api/v1/object?key=&tenant= (one
// object with everything that is known about it), /api/v1/stats. /api/v1/policies lists the eviction domains; POST
// {"domain":"*","policy":"lru"} changes one, DELETE {"domain":"team-a"} ends a tenant's own, POST .../rollback undoes the
// last change. /api/v1/recording: POST {"file":"x.trace"} records, DELETE stops. These changes are for callers of the
// same host only.
//
// Differences from upstream: reading a key grants no lease, so monitoring keeps nothing alive; percent escapes in
// queries are decoded (a "+" stays a "+"); /get_all_keys is sent page by page instead of being built in memory.
// There is no authentication, as upstream has none: bind an address that only operators reach. Calls that change
// something are refused when a browser makes them for another site's page.
//
// # Metrics
//
// /metrics begins with all of upstream's families, in upstream's format and order; those of what this version
// lacks (HA, NVMe-oF) are 0. Ours follow:
//
//	mooncake_master_requested_bytes, mooncake_master_allocated_bytes, mooncake_master_capacity_bytes
//	mooncake_master_free_bytes, mooncake_master_largest_free_bytes, mooncake_master_quarantined_bytes
//	mooncake_master_objects{state}                      all, processing, soft_pinned, hard_pinned
//	mooncake_master_clients{state}                      ok, suspected
//	mooncake_master_segments
//	mooncake_master_transitions_total{what}             client_expired, client_suspected, segment_suspected
//	mooncake_master_late_writers_total                  ends and revokes of puts that were taken over
//	mooncake_master_quota_rejects_total
//	mooncake_master_eviction_refused_total{reason}      victims that a policy named and the master kept
//	mooncake_master_eviction_policy_faults_total, mooncake_master_eviction_policy_rebuilds_total,
//	mooncake_master_eviction_guard_alarms_total
//	mooncake_master_eviction_events_dropped_total
//	mooncake_master_eviction_domain_{objects,backlog,evicted_total,policy_bytes,fallback}{domain}
//	mooncake_master_eviction_domain_regret_total{domain}, mooncake_master_eviction_guard_hit_ratio{domain,of}
//	mooncake_master_request_{blocks,found_blocks,prefix_hit_blocks}_total{domain}
//	mooncake_master_admission_total{domain,result}      asked, refused, late, asked_again
//	mooncake_master_tenant_{used,quota,requested_quota}_bytes{tenant}, mooncake_master_tenant_objects{tenant}
//	mooncake_master_tasks{state}                        pending, processing, finished
package admin
