package engine

import "github.com/pgratelimit/pg-ratelimit/internal/core/schema"

// TableSQL is that of package postgres.
const TableSQL = schema.Counters

// migrationSQL runs in one process at a time.
const migrationSQL = schema.Lock + TableSQL
