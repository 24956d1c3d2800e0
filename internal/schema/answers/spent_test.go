package answers_test

import (
	_ "embed"
	"flag"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
)

var (
	manyRows  = flag.Int("spent-rows", 20_000, "the rows of the ledger of TestSpentMoneyOfManyRows")
	manyUsers = flag.Int("spent-users", 1000, "the users of these rows")
)

// manyRowsSQL adds rows of 50 days to the ledger: of users in 100 teams, 10 departments and an organization.
//
//go:embed testdata/many_rows.sql
var manyRowsSQL string

// What many rows have spent, and the invoice of all, are the same from totals as from rows. An invoice of
// whole days reads no row. The log has the time that each takes.
func TestSpentMoneyOfManyRows(t *testing.T) {
	s := sqltest.Open(t, schema.File)
	s.Exec(strings.NewReplacer("USERS", strconv.Itoa(*manyUsers), "ROWS", strconv.Itoa(*manyRows)).Replace(
		manyRowsSQL))
	for s.Query("SELECT rate_limit_totals_upkeep()") == "t" {
	}
	s.Exec("ANALYZE")
	now := s.Query("SELECT now()")
	queries := []string{"SELECT * FROM rate_limit_spent()", fmt.Sprintf("SELECT * FROM rate_limit_invoice("+
		"'org', timestamptz '%s' - interval '31 days', '%[1]s')", now), fmt.Sprintf("SELECT i.* FROM "+
		"date_trunc('day', timestamptz '%s', 'UTC') d, rate_limit_invoice('org', d - interval '31 days', "+
		"d - interval '3 days') i", now)}
	var got []string
	for _, query := range queries {
		start := time.Now()
		got = append(got, s.Query(query))
		t.Logf("%v from totals: %s", time.Since(start), query)
	}
	s.Exec("BEGIN; TRUNCATE rate_limit_ledger")
	s.Expect(queries[2], got[2])
	s.Exec("ROLLBACK")
	s.Exec("UPDATE rate_limit_ledger_days SET summed = false")
	for n, query := range queries {
		start := time.Now()
		check.Equal(t, query, got[n], s.Query(query))
		t.Logf("%v from rows: %s", time.Since(start), query)
	}
}
