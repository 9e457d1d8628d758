// Package telemetry is what an operator sees of a node: logs, metrics, health and the admin server.
//
//   - [Logging] writes slog records as text for people or JSON for machines, to stderr or to a rotated
//     file. Its level changes while it runs. Values of secret-looking attributes and passwords in
//     addresses are masked before they are written.
//   - [Registry] is a Prometheus registry that also knows the type of every registered metric, so that
//     [Registry.Catalogue] can list them all for the documentation, even before they have a sample.
//   - [Admin] serves /metrics, /healthz, /readyz, /api/v1/loglevel, /debug/pprof and what other parts add.
//     Calls that change or reveal something are answered on loopback and on the Unix socket only.
//   - [BuildVersion] tells what this binary was built from.
//
// Config sections: "log" ([LogConfig]) and "admin" ([AdminConfig]).
//
// Metrics: mooncake_build_info, mooncake_admin_requests_total, and the go_* and process_* ones of the
// Prometheus library.
package telemetry
