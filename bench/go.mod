module github.com/pgratelimit/pg-ratelimit/bench

go 1.26.0

require (
	github.com/jackc/pgx/v5 v5.12.0
	github.com/pgratelimit/pg-ratelimit v0.0.0
	github.com/prometheus/procfs v0.22.0
	golang.org/x/sys v0.47.0
)

require (
	github.com/jackc/pgpassfile v1.0.0 // indirect
	github.com/jackc/pgservicefile v0.0.0-20240606120523-5a60cdf6a761 // indirect
	golang.org/x/text v0.42.0 // indirect
)

replace github.com/pgratelimit/pg-ratelimit => ../
