package archive

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// partition is a table with rows of a day, which is a partition of rate_limit_audit or was one.
type partition struct {
	oid      uint32
	name     string
	table    string // with its schema, for SQL
	parent   string // rate_limit_audit with its schema, for SQL
	day      time.Time
	attached bool
	pending  bool // the end of its DETACH … CONCURRENTLY is missing
}

// problem is a reason why a partition was not archived. Others may be.
type problem struct{ text string }

func (p *problem) Error() string { return p.text }

// partitions returns those of the audit log, the oldest first. Tables that were detached from it
// are known by their names.
func partitions(ctx context.Context, conn *pgx.Conn) ([]partition, error) {
	rows, err := conn.Query(ctx, `
SELECT c.oid, c.relname::text, format('%I.%I', n.nspname, c.relname), format('%I.%I', n.nspname, parent.relname),
	to_date(substring(c.relname FROM 18 FOR 8), 'YYYYMMDD'), i.inhrelid IS NOT NULL, coalesce(i.inhdetachpending, false)
FROM pg_class parent JOIN pg_namespace n ON n.oid = parent.relnamespace
	JOIN pg_class c ON c.relnamespace = n.oid AND c.relowner = parent.relowner AND c.relkind = 'r' AND c.relname ~ '^rate_limit_audit_[0-9]{8}(_[0-9]+)?$'
	LEFT JOIN pg_inherits i ON i.inhrelid = c.oid AND i.inhparent = parent.oid
WHERE parent.oid = 'rate_limit_audit'::regclass
ORDER BY c.relname`)
	var all []partition
	if err == nil {
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (p partition, err error) {
			err = row.Scan(&p.oid, &p.name, &p.table, &p.parent, &p.day, &p.attached, &p.pending)
			return p, err
		})
	}
	if missing(err) {
		err = errors.New("there is no table rate_limit_audit: run caddy pg-ratelimit migrate")
	}
	return all, err
}

// detach detaches a partition. Readers and writers of other days go on meanwhile.
//
// The upkeep of the history detaches in the same two steps. No function of the database can hold them for both:
// DETACH … CONCURRENTLY cannot run in a transaction. This package has steps of its own, because all statements of a
// run need the session with the lock of the run. And dropTable compares the rows with the file, so it cannot be
// rate_limit_drop_expired.
func detach(ctx context.Context, conn *pgx.Conn, p partition) error {
	// Only one partition at a time can be pending.
	if err := finalize(ctx, conn); err != nil {
		return err
	}
	_, failed := conn.Exec(ctx, "ALTER TABLE "+p.parent+" DETACH PARTITION "+p.table+" CONCURRENTLY")
	if !busy(failed) && !missing(failed) {
		return failed
	}
	// If a reader kept it from being completed, it is pending now. If it is missing, upkeep
	// detached it meanwhile.
	if err := finalize(ctx, conn); err != nil {
		return err
	}
	var attached bool
	if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_inherits WHERE inhrelid = $1::oid)", p.oid).Scan(&attached); err != nil {
		return err
	}
	if attached {
		return &problem{fmt.Sprintf("%s cannot be detached at present: %v. The next run tries again", p.name, failed)}
	}
	return nil
}

// finalize completes the DETACH … CONCURRENTLY that another process, or this one, began.
func finalize(ctx context.Context, conn *pgx.Conn) error {
	all, err := partitions(ctx, conn)
	if err != nil {
		return err
	}
	for _, p := range all {
		if !p.pending {
			continue
		}
		_, err := conn.Exec(ctx, "ALTER TABLE "+p.parent+" DETACH PARTITION "+p.table+" FINALIZE")
		if busy(err) {
			return &problem{"a transaction that reads the audit log keeps " + p.name + " from being detached: the next run tries again"}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// busy tells whether a statement failed since others hold a lock, or since another process does
// the same.
func busy(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && (e.Code == "55P03" || e.Code == "55000")
}

// missing tells whether a statement failed since there is no such table, or no such partition.
func missing(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && e.Code == "42P01"
}

// reading runs a function in a transaction that reads the partition. A table stays the same table as long as
// the transaction runs.
func reading(ctx context.Context, conn *pgx.Conn, p partition, do func(pgx.Tx) error) error {
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // it only read
	if err := lock(ctx, tx, p, "ACCESS SHARE"); err != nil {
		return err
	}
	return do(tx)
}

// lock locks the table of the partition for the transaction, and makes sure that it is the same
// as before: another process may have dropped it and made one with the same name.
func lock(ctx context.Context, tx pgx.Tx, p partition, mode string) error {
	_, err := tx.Exec(ctx, "LOCK TABLE ONLY "+p.table+" IN "+mode+" MODE")
	switch {
	case busy(err):
		return &problem{"another transaction locks " + p.name + ": the next run tries again"}
	case missing(err):
		return &problem{p.name + " was dropped meanwhile by another process"}
	case err != nil:
		return err
	}
	var same bool
	if err := tx.QueryRow(ctx, "SELECT coalesce(to_regclass($1)::oid = $2::oid, false)", p.table, p.oid).Scan(&same); err != nil {
		return err
	}
	if !same {
		return &problem{p.name + " was dropped meanwhile by another process"}
	}
	return nil
}

// dropTable drops a detached partition that has exactly so many rows.
func dropTable(ctx context.Context, conn *pgx.Conn, p partition, rows int64) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) //nolint:errcheck // after a commit it does nothing
	if err := lock(ctx, tx, p, "ACCESS EXCLUSIVE"); err != nil {
		return err
	}
	var now int64
	var attached bool
	if err := tx.QueryRow(ctx, "SELECT count(*), EXISTS (SELECT FROM pg_inherits WHERE inhrelid = $1::oid) FROM ONLY "+p.table, p.oid).Scan(&now, &attached); err != nil {
		return err
	}
	if attached || now != rows {
		return &problem{fmt.Sprintf("%s was not dropped: it was changed meanwhile (%d rows, the file has %d)", p.name, now, rows)}
	}
	if _, err := tx.Exec(ctx, "DROP TABLE "+p.table); err != nil {
		return err
	}
	return tx.Commit(ctx)
}
