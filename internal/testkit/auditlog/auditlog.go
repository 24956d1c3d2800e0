// Package auditlog fills the audit log and the ledger for tests of their archive.
package auditlog

import (
	_ "embed"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Fill creates the partition of a day, as writers do, and adds rows with all kinds of values: NULL, the
// limits of each type, empty and long texts, several scripts, addresses and networks of both families, and
// arrays.
func Fill(t testing.TB, conn *pgx.Conn, day time.Time, rows int) {
	t.Helper()
	run(t, conn, "SELECT rate_limit_make_partition($1::date)", day)
	run(t, conn, fill, day, rows)
}

// MakeLedgerDay creates the partition of a day of the ledger, as upkeep does.
func MakeLedgerDay(t testing.TB, conn *pgx.Conn, day time.Time) {
	t.Helper()
	run(t, conn, fmt.Sprintf("CREATE TABLE IF NOT EXISTS rate_limit_ledger_%s PARTITION OF "+
		"rate_limit_ledger (PRIMARY KEY (id)) FOR VALUES FROM ('%s') TO ('%s')", day.Format("20060102"),
		day.Format(time.DateOnly), day.AddDate(0, 0, 1).Format(time.DateOnly)))
}

// FillLedger creates the partition of a day, and adds rows of all kinds, some with two lines.
func FillLedger(t testing.TB, conn *pgx.Conn, day time.Time, rows int) {
	t.Helper()
	MakeLedgerDay(t, conn, day)
	run(t, conn, fillLedger, day, rows)
}

func run(t testing.TB, conn *pgx.Conn, sql string, args ...any) {
	t.Helper()
	if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// fill inserts $2 rows of the day $1.
//
//go:embed testdata/fill.sql
var fill string

// fillLedger inserts $2 requests and corrections of the day $1.
//
//go:embed testdata/fill_ledger.sql
var fillLedger string
