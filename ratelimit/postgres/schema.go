package postgres

import "github.com/pgratelimit/pg-ratelimit/internal/core/schema"

// TableSQL creates the two tables of counts, or brings those of the npm library pg-ratelimit
// up to date in place and keeps their rows. It can run any number of times. A Store runs it
// on first use, unless Options.DisableMigration is set; then it is for the operator.
const TableSQL = schema.Counters

// migrationSQL runs in one process at a time.
const migrationSQL = schema.Lock + TableSQL
