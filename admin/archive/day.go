package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/parquet-go/parquet-go"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
)

// table is a table that Run archives.
type table struct {
	name      string // of the table
	title     string // in texts
	folder    string // of the files of the destination
	retention string // the table with the retention
	kept      string // a query for the start of the retention at $1; no row: days are kept for ever
	// units lists what becomes a file: the fields of a partition.
	units string
	// key has the columns that identify a row, also after others have changed. Nil: all, as equal rows count
	// each.
	key []string
	// late is the time after the end of a day in which a repeated row must find the first one.
	late time.Duration
}

const kept = "SELECT $1::timestamptz - keep FROM %s WHERE keep < interval '1000 years'"

// tables has all tables. The days of the audit log are its partitions, and tables that an administrator has
// detached. A day of the ledger has a partition on each shard, and each request once.
var tables = []*table{{
	name: "rate_limit_audit", title: "audit log", folder: "audit", retention: "rate_limit_retention",
	kept: fmt.Sprintf(kept, "rate_limit_retention") + " AND what = 'audit'",
	units: `SELECT to_date(substring(c.relname FROM 18 FOR 8), 'YYYYMMDD') AS day, c.relname::text,
	ARRAY[t.name], ARRAY[c.oid], 'SELECT * FROM ONLY ' || t.name, false, false
FROM pg_class parent
	JOIN pg_class c ON c.relnamespace = parent.relnamespace AND c.relowner = parent.relowner,
	format('%I.%I', c.relnamespace::regnamespace::text, c.relname) AS t(name)
WHERE parent.oid = 'rate_limit_audit'::regclass AND c.relkind = 'r'
	AND c.relname ~ '^rate_limit_audit_[0-9]{8}(_[0-9]+)?$'
ORDER BY c.relname`,
}, {
	name: "rate_limit_ledger", title: "ledger", folder: "ledger", retention: "rate_limit_ledger_retention",
	kept: fmt.Sprintf(kept, "rate_limit_ledger_retention"),
	units: `SELECT d.day, 'rate_limit_ledger' || to_char(d.day, '_YYYYMMDD'), d.tables, d.oids,
	rate_limit_ledger_lines(rate_limit_ledger_source(datemultirange(daterange(d.day, d.day + 1)), ''))
		|| ' ORDER BY l.time, l.id, line',
	k.summed IS NOT TRUE, coalesce(k.summed AND k.open_until = '-infinity', false)
FROM (SELECT right(c.relname, 8)::date AS day, array_agg(c.oid ORDER BY c.oid) AS oids,
		array_agg(format('%I.%I', c.relnamespace::regnamespace::text, c.relname) ORDER BY c.oid) AS tables
	FROM rate_limit_ledgers() l JOIN pg_inherits i ON i.inhparent = l::regclass
		JOIN pg_class c ON c.oid = i.inhrelid AND c.relname ~ '^rate_limit_ledger_[0-9]{8}$'
	GROUP BY 1) d LEFT JOIN rate_limit_ledger_days k ON k.day = d.day
ORDER BY 1`,
	key: []string{"id", "line"}, late: 9 * dayLength,
}}

// partition is what becomes a file.
type partition struct {
	*table
	day    time.Time
	name   string
	tables []string // the names with their schemas, for SQL
	oids   []uint32
	source string // a query for the rows
	open   bool   // it must be closed for writers first
	sealed bool   // it has got no rows since it was first closed, so that a file has all
	drops  bool
}

// partitions returns what becomes files, oldest first.
func (t *table) partitions(ctx context.Context, conn *pgx.Conn) ([]partition, error) {
	rows, _ := conn.Query(ctx, t.units) // CollectRows returns the error
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (partition, error) {
		p := partition{table: t}
		return p, row.Scan(&p.day, &p.name, &p.tables, &p.oids, &p.source, &p.open, &p.sealed)
	})
}

// archiveDay archives a partition in one transaction, and records the result in day.
func archiveDay(ctx context.Context, conn *pgx.Conn, o Options, p partition, day *Day) error {
	locked := &problem{"another transaction locks " + p.name + ": the next run tries again"}
	for range 2 { // the first one closes it, and the second one sums it
		closed := true
		if p.open {
			// the lock of rate_limit_totals_upkeep
			err := conn.QueryRow(ctx, "SELECT rate_limit_sum_day($1) FROM pg_advisory_xact_lock(1885827696)",
				p.day).Scan(&closed)
			if !closed || sqlState(err) == pg.LockNotAvailable {
				return locked
			} else if err != nil {
				return err
			}
		}
	}
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // after a commit it does nothing
	mode := "ACCESS SHARE"
	if p.drops {
		mode = "SHARE"
	}
	_, err = tx.Exec(ctx, "LOCK TABLE "+strings.Join(p.tables, ", ")+" IN "+mode+" MODE")
	isSame := false
	if err == nil {
		// While this session waited for the lock, another process may have dropped the table, and created a
		// table with the same name.
		err = tx.QueryRow(ctx, "SELECT bool_and(coalesce(to_regclass(name)::oid = oid, false)) "+
			"FROM unnest($1::text[], $2::oid[]) AS t(name, oid)", p.tables, p.oids).Scan(&isSame)
	}
	switch {
	case sqlState(err) == pg.LockNotAvailable:
		return locked
	case sqlState(err) == pg.UndefinedTable, err == nil && !isSame:
		return &problem{p.name + " was dropped meanwhile by another process"}
	case err != nil:
		return err
	}
	if err := storeRows(ctx, tx, o, p, day); err != nil || !p.drops {
		return err
	}
	return drop(ctx, tx, o, p, day)
}

// storeRows writes the rows of the partition that are in no file to a new file. It sets the result in day.
func storeRows(ctx context.Context, tx pgx.Tx, o Options, p partition, day *Day) error {
	files, nextNumber, err := listFiles(ctx, o.Destination, p)
	if err != nil {
		return err
	}
	inFiles, lastFile := int64(0), ""
	for _, name := range files {
		n, err := withFile(ctx, o.Destination, name, func(*parquet.File) error { return nil })
		if err != nil {
			return err
		}
		inFiles, lastFile = inFiles+n, name
	}
	// Unless it is dropped, only compare the numbers of rows in the files and in the table, or nothing. Each
	// run handles all days again, so comparing the rows themselves would read the whole table in each run.
	if day.Rows = inFiles; inFiles == 0 || !p.sealed || p.drops {
		if err := tx.QueryRow(ctx, "SELECT count(*) FROM ("+p.source+") s").Scan(&day.Rows); err != nil {
			return err
		}
	}
	if day.Rows == 0 {
		day.Result = Empty
		return nil
	}
	if inFiles == day.Rows && !p.drops {
		day.Result, day.File = Unchanged, lastFile
		return nil
	}
	columns, err := columnsOf(ctx, tx, p)
	if err != nil {
		return err
	}
	digests := map[digest]int{}
	for _, name := range files {
		add := func(f *parquet.File) error {
			return eachDigest(f, p.key, func(d digest) { digests[d]++ })
		}
		if _, err := withFile(ctx, o.Destination, name, add); err != nil {
			return err
		}
	}
	name := p.fileName(nextNumber)
	f, err := o.Destination.temporary(name)
	if err != nil {
		return err
	}
	defer func() {
		_ = f.Close()
		_ = os.Remove(f.Name()) // fails if the file was stored, because store has renamed the file
	}()
	rows, err := writeFile(ctx, tx, f, p, columns, digests)
	if err != nil {
		return err
	}
	if rows == 0 {
		day.Result, day.File = Unchanged, lastFile
		return nil
	}
	if day.Bytes, err = f.Seek(0, io.SeekEnd); err != nil {
		return err
	}
	if err := o.Destination.store(ctx, f, name); err != nil {
		return fmt.Errorf("storing %s: %w", name, err)
	}
	day.Result, day.File = Archived, name
	return nil
}

// withFile opens a file of the destination, passes it to read, and returns the number of rows in the file.
func withFile(ctx context.Context, destination Destination, name string,
	read func(*parquet.File) error) (int64, error) {
	s, err := destination.open(ctx, name)
	if err != nil {
		return 0, fmt.Errorf("opening %s: %w", name, err)
	}
	defer s.Close()
	f, err := openFile(s)
	if err == nil {
		err = read(f)
	}
	if err != nil {
		return 0, &problem{"reading " + name + ": " + err.Error()}
	}
	return f.NumRows(), nil
}

// dropWait bounds one attempt to drop a table, and is the pause before the next attempt. During an attempt,
// other sessions that use the whole table wait.
const dropWait = 100 * time.Millisecond

// drop drops the table and commits. While a reader locks it or the whole table, drop retries, for up to
// o.Patience.
func drop(ctx context.Context, tx pgx.Tx, o Options, p partition, day *Day) error {
	timeout := fmt.Sprintf("SET LOCAL lock_timeout = %d", dropWait.Milliseconds())
	if _, err := tx.Exec(ctx, timeout); err != nil {
		return err
	}
	for end := time.Now().Add(o.Patience); ; {
		attempt, err := tx.Begin(ctx) // a savepoint
		if err != nil {
			return err
		}
		if _, err = attempt.Exec(ctx, "DROP TABLE "+strings.Join(p.tables, ", ")); err == nil {
			if err = tx.Commit(ctx); err == nil {
				day.Dropped = true
			}
			return err
		}
		if rolled := attempt.Rollback(ctx); rolled != nil || sqlState(err) != pg.LockNotAvailable {
			return errors.Join(err, rolled)
		}
		if time.Now().After(end) {
			return &problem{p.name + " is not dropped, since a transaction uses it or the " + p.title +
				": the next run tries again"}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(dropWait):
		}
	}
}

// dayLength is the length of a day in UTC.
const dayLength = 24 * time.Hour

func dayName(day time.Time) string { return day.Format(time.DateOnly) }

const extension = ".parquet"

// fileName returns the name of the n-th file of the day, counted from 1.
func (p partition) fileName(n int) string {
	number := ""
	if n > 1 {
		number = "-" + strconv.Itoa(n)
	}
	return path.Join(p.folder, p.day.Format("2006/01"), dayName(p.day)+number+extension)
}

// listFiles returns the names of a day's files, and the next free number for fileName.
func listFiles(ctx context.Context, destination Destination, p partition) (names []string, nextNumber int,
	err error) {
	stem := strings.TrimSuffix(p.fileName(1), extension)
	candidates, err := destination.list(ctx, stem)
	if err != nil {
		return nil, 0, fmt.Errorf("listing the files of %s: %w", dayName(p.day), err)
	}
	nextNumber = 1
	for _, name := range candidates {
		n := 1
		if number, ok := strings.CutPrefix(strings.TrimSuffix(name, extension), stem+"-"); ok {
			n, _ = strconv.Atoi(number) // after an error, name differs from fileName
		}
		if name == p.fileName(n) {
			names, nextNumber = append(names, name), max(nextNumber, n+1)
		}
	}
	slices.Sort(names)
	return names, nextNumber, nil
}
