package history_test

import (
	"sort"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// The SQL functions have exactly the arguments that a Writer sends.
func TestWriterSendsEveryColumn(t *testing.T) {
	d := openTestDB(t, cluster.Open(t, schema.History))
	for _, name := range []string{"rate_limit_record_audit", "rate_limit_record_metrics"} {
		columns := history.Columns(name)
		sort.Strings(columns)
		check.Equal(t, name, strings.Join(columns, " "), d.query(`
			SELECT string_agg(n, ' ' ORDER BY n COLLATE "C")
			FROM pg_proc p, unnest(p.proargnames) n WHERE p.proname = '`+name+`'`))
	}
}
