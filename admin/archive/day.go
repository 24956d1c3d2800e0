package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/parquet-go/parquet-go"
)

// partition is a table with the rows of a day: a partition of rate_limit_audit, or a table that an
// administrator has detached from rate_limit_audit.
type partition struct {
	oid   uint32
	name  string
	table string // the name with the schema, for SQL
	day   time.Time
}

// partitions returns the tables that have names of partitions of the audit log, oldest first. These include
// detached tables.
func partitions(ctx context.Context, conn *pgx.Conn) ([]partition, error) {
	rows, err := conn.Query(ctx, `SELECT c.oid, c.relname::text,
		format('%I.%I', c.relnamespace::regnamespace::text, c.relname),
	to_date(substring(c.relname FROM 18 FOR 8), 'YYYYMMDD')
FROM pg_class parent JOIN pg_class c ON c.relnamespace = parent.relnamespace AND c.relowner = parent.relowner
WHERE parent.oid = 'rate_limit_audit'::regclass AND c.relkind = 'r'
	AND c.relname ~ '^rate_limit_audit_[0-9]{8}(_[0-9]+)?$'
ORDER BY c.relname`)
	var days []partition
	if err == nil {
		days, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (p partition, err error) {
			err = row.Scan(&p.oid, &p.name, &p.table, &p.day)
			return p, err
		})
	}
	if sqlState(err) == "42P01" {
		err = errors.New("there is no table rate_limit_audit: run the command migrate")
	}
	return days, err
}

// archiveDay archives a partition in one transaction, and records the result in day.
func archiveDay(ctx context.Context, conn *pgx.Conn, o Options, p partition, day *Day) error {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // after a commit it does nothing
	mode := "ACCESS SHARE"
	if o.Drop {
		mode = "SHARE"
	}
	_, err = tx.Exec(ctx, "LOCK TABLE ONLY "+p.table+" IN "+mode+" MODE")
	isSame := false
	if err == nil {
		// While this session waited for the lock, another process may have dropped the table, and created a
		// table with the same name.
		err = tx.QueryRow(ctx, "SELECT coalesce(to_regclass($1)::oid = $2::oid, false)", p.table,
			p.oid).Scan(&isSame)
	}
	switch {
	case sqlState(err) == "55P03":
		return &problem{"another transaction locks " + p.name + ": the next run tries again"}
	case sqlState(err) == "42P01", err == nil && !isSame:
		return &problem{p.name + " was dropped meanwhile by another process"}
	case err != nil:
		return err
	}
	if err := storeRows(ctx, tx, o, p, day); err != nil || !o.Drop {
		return err
	}
	return drop(ctx, tx, o, p, day)
}

// storeRows writes the rows of the partition that are in no file to a new file. It sets the result in day.
func storeRows(ctx context.Context, tx pgx.Tx, o Options, p partition, day *Day) error {
	if err := tx.QueryRow(ctx, "SELECT count(*) FROM ONLY "+p.table).Scan(&day.Rows); err != nil {
		return err
	}
	if day.Rows == 0 {
		day.Result = Empty
		return nil
	}
	columns, err := columnsOf(ctx, tx, p.table)
	if err != nil {
		return err
	}
	files, nextNumber, err := listFiles(ctx, o.Destination, p.day)
	if err != nil {
		return err
	}
	// Without Drop, only compare the numbers of rows in the files and in the table. Each run handles all days
	// again, so comparing the rows themselves would read the whole audit log in each run.
	inFiles, lastFile := int64(0), ""
	for _, name := range files {
		n, err := withFile(ctx, o.Destination, name, func(*parquet.File) error { return nil })
		if err != nil {
			return err
		}
		inFiles, lastFile = inFiles+n, name
	}
	if inFiles == day.Rows && !o.Drop {
		day.Result, day.File = Unchanged, lastFile
		return nil
	}
	digests := map[digest]int{}
	for _, name := range files {
		add := func(f *parquet.File) error { return addDigests(f, digests) }
		if _, err := withFile(ctx, o.Destination, name, add); err != nil {
			return err
		}
	}
	name := fileName(p.day, nextNumber)
	f, err := o.Destination.temporary(name)
	if err != nil {
		return err
	}
	defer func() {
		_ = f.Close()
		_ = os.Remove(f.Name()) // fails if the file was stored, because store has renamed the file
	}()
	rows, err := writeFile(ctx, tx, f, p, columns, isNew(maps.Clone(digests)))
	if err != nil {
		return err
	}
	if rows == 0 {
		day.Result, day.File = Unchanged, lastFile
		return nil
	}
	if err := verify(ctx, tx, f, p, columns, isNew(digests)); err != nil {
		return fmt.Errorf("reading %s back: %w", f.Name(), err)
	}
	if day.Bytes, err = f.Seek(0, io.SeekEnd); err != nil {
		return err
	}
	if err := o.Destination.store(ctx, f, day.Bytes, name); err != nil {
		return fmt.Errorf("storing %s: %w", name, err)
	}
	day.Result, day.File = Archived, name
	return nil
}

// isNew returns a function that reports whether a row of the table is in no file. It changes digests, the
// numbers of the files' rows by digest: the table may have equal rows, so each row of a file matches only one
// row of the table.
func isNew(digests map[digest]int) func(digest) bool {
	return func(d digest) bool {
		digests[d]--
		return digests[d] < 0
	}
}

// withFile opens a file of the destination, passes it to read, and returns the number of rows in the file.
func withFile(ctx context.Context, destination Destination, name string,
	read func(*parquet.File) error) (int64, error) {
	s, err := destination.open(ctx, name)
	if err != nil {
		return 0, fmt.Errorf("opening %s: %w", name, err)
	}
	defer s.Close()
	f, err := openFile(s, s.Size())
	if err == nil {
		err = read(f)
	}
	if err != nil {
		return 0, &problem{"reading " + name + ": " + err.Error()}
	}
	return f.NumRows(), nil
}

// dropWait bounds one attempt to drop a table, and is the pause before the next attempt. During an attempt,
// other sessions that use the audit log wait.
const dropWait = 100 * time.Millisecond

// drop drops the table and commits. While a reader locks the table or the audit log, drop retries, for up to
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
		if _, err = attempt.Exec(ctx, "DROP TABLE "+p.table); err == nil {
			if err = tx.Commit(ctx); err == nil {
				day.Dropped = true
			}
			return err
		}
		if rolled := attempt.Rollback(ctx); rolled != nil || sqlState(err) != "55P03" {
			return errors.Join(err, rolled)
		}
		if time.Now().After(end) {
			return &problem{p.name + " is not dropped, since a transaction uses it or the audit log: the " +
				"next run tries again"}
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

// fileName returns the name of the n-th file of a day, counted from 1.
func fileName(day time.Time, n int) string {
	number := ""
	if n > 1 {
		number = "-" + strconv.Itoa(n)
	}
	return path.Join("audit", day.Format("2006/01"), dayName(day)+number+extension)
}

// listFiles returns the names of a day's files, and the next free number for fileName.
func listFiles(ctx context.Context, destination Destination, day time.Time) (names []string, nextNumber int,
	err error) {
	stem := strings.TrimSuffix(fileName(day, 1), extension)
	candidates, err := destination.list(ctx, stem)
	if err != nil {
		return nil, 0, fmt.Errorf("listing the files of %s: %w", dayName(day), err)
	}
	nextNumber = 1
	for _, name := range candidates {
		n := 1
		if number, ok := strings.CutPrefix(strings.TrimSuffix(name, extension), stem+"-"); ok {
			n, _ = strconv.Atoi(number) // after an error, name differs from fileName
		}
		if name == fileName(day, n) {
			names, nextNumber = append(names, name), max(nextNumber, n+1)
		}
	}
	slices.Sort(names)
	return names, nextNumber, nil
}
