package archive_test

import (
	_ "embed"
	"flag"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/auditlog"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// `make test-archive` sets this flag.
var yearRows = flag.Int("year-rows", 300, "the rows of a day of TestLedgerOfFourHundredDays")

const (
	ledgerDays = 400 // the partitions of the ledger
	filledDays = 3   // those with rows
)

// requestsOf adds the rows of a day: requests of 1,000 users in 100 teams of an organization, with three
// limits.
//
//go:embed testdata/requests.sql
var requestsOf string

// A ledger of 400 days is closed, kept, dumped and archived. The log has its size and how long each takes,
// computed from three days with rows.
func TestLedgerOfFourHundredDays(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it: it takes half a minute")
	}
	dsn, conn := openAuditLog(t, 0, 0)
	midnight := time.Now().UTC().Truncate(24 * time.Hour)
	for n := range ledgerDays {
		auditlog.MakeLedgerDay(t, conn, midnight.AddDate(0, 0, -n-2))
		if n < filledDays {
			execute(t, conn, requestsOf, midnight.AddDate(0, 0, -n-2), *yearRows)
		}
	}
	execute(t, conn, "ANALYZE")
	year := func(title string, one func()) {
		start := time.Now()
		one()
		t.Logf("%s: %.1f s for 400 days", title, time.Since(start).Seconds()*ledgerDays/filledDays)
	}
	size := queryInt(t, conn, `SELECT sum(pg_total_relation_size(relid))::bigint
		FROM pg_partition_tree('rate_limit_ledger')`)
	t.Logf("size: %.1f GB", float64(size)*ledgerDays/filledDays/1e9)
	year("sums", func() {
		for n := range filledDays * 2 { // the first one closes a day, and the second one sums it
			execute(t, conn, "SELECT rate_limit_sum_day($1)", midnight.AddDate(0, 0, -n/2-2))
		}
	})
	check.Equal(t, "the sums", queryInt(t, conn, "SELECT sum(requests)::bigint FROM rate_limit_totals WHERE "+
		"own AND prefix IS NULL"), filledDays*int64(*yearRows))
	start := time.Now()
	execute(t, conn, "SELECT rate_limit_ledger_upkeep()")
	t.Logf("upkeep of an hour: %.2f s", time.Since(start).Seconds())
	year("dump", func() {
		if out, err := exec.Command(cluster.Tool(t, "pg_dump"), "-Fc", "-d", dsn, "-f",
			filepath.Join(t.TempDir(), "dump")).CombinedOutput(); err != nil {
			t.Fatalf("pg_dump: %v\n%s", err, out)
		}
	})
	dir := t.TempDir()
	o := options(t, dir, 0)
	o.Now, o.Before = time.Now(), midnight.AddDate(0, 0, -filledDays-1)
	mustRun(t, conn, o) // the days without rows
	o.Before = midnight
	year("archive", func() {
		bytes := int64(0)
		for _, d := range mustRun(t, conn, o) {
			check.Equal(t, "the rows of "+d.Day, d.Rows, int64(*yearRows))
			bytes += d.Bytes
		}
		t.Logf("files: %.1f GB", float64(bytes)*ledgerDays/filledDays/1e9)
	})
	start = time.Now()
	mustRun(t, conn, o)
	t.Logf("another archive: %.1f s", time.Since(start).Seconds())
}
