package history

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// UpkeepReport says what Upkeep did. Partitions are given by the names of their tables, with the
// schema. Empty lists are not nil, so that they are [] in JSON.
type UpkeepReport struct {
	// Busy reports that another process was doing the upkeep, so that this one did nothing.
	Busy bool `json:"busy"`

	Made    []string `json:"made"`    // new partitions
	Deleted int64    `json:"deleted"` // rows of metrics and writers
	// partitions that were made tables of their own, the step before they are dropped
	Detached []string `json:"detached"`
	Dropped  []string `json:"dropped"` // partitions that were deleted

	// Skipped lists the partitions that should have been detached or dropped and are in use, with their
	// users, such as "public.rate_limit_audit_20260101: held by pid 4711". "rate_limit_audit: held by
	// another session" means that no partition could be created.
	Skipped []string `json:"skipped"`
}

// IsNothing reports whether the upkeep changed nothing.
func (r *UpkeepReport) IsNothing() bool {
	return !r.Busy && r.Deleted == 0 &&
		len(r.Made)+len(r.Detached)+len(r.Dropped)+len(r.Skipped) == 0
}

// ddlTimeout bounds each command that detaches a partition. While it waits for readers of the
// partition, readers and writers of the others go on.
const ddlTimeout = 2 * time.Second

// Upkeep maintains the history, which needs it about once a minute. It creates the partitions of today
// and the next 7 days, and deletes what is past its retention at the time now.
// The zero time means the present by the clock of the database. Any number of processes may call it at
// any time. Only the owner of the tables can create partitions for another time than the present, or
// delete what is due in the future.
//
// The SQL function rate_limit_drop_expired drops the partitions that are past their retention, and
// writers wait for it for up to 100 ms. If the role of the connection owns the tables, Upkeep first
// detaches each of these partitions with DETACH … CONCURRENTLY, which blocks neither readers nor
// writers; a function cannot do that. It skips a partition that another session uses, and the next
// Upkeep retries.
//
// Upkeep continues after failures. The error joins all of them, and the report says what was done.
func Upkeep(ctx context.Context, db pgdb.DB, now time.Time) (UpkeepReport, error) {
	return doUpkeep(ctx, db, now, 0)
}

// doUpkeep is Upkeep if no process has done it within interval.
func doUpkeep(ctx context.Context, db pgdb.DB, now time.Time, interval time.Duration) (UpkeepReport, error) {
	u := &upkeep{db: db, now: "now", interval: interval, report: UpkeepReport{Made: []string{},
		Detached: []string{}, Dropped: []string{}, Skipped: []string{}}}
	if !now.IsZero() {
		u.now = now.UTC().Format("2006-01-02 15:04:05.999999Z07:00")
	}
	if err := u.run(ctx); err != nil {
		return u.report, fmt.Errorf("upkeep of the history: %w", err)
	}
	return u.report, nil
}

// upkeep is the state of one call of Upkeep.
type upkeep struct {
	db       pgdb.DB
	now      string
	interval time.Duration
	report   UpkeepReport
}

// The queries of an upkeep. Time $1 is text, so that any driver can send it.
const (
	upkeepSQL  = `SELECT what, name, rows FROM rate_limit_upkeep($1::text::timestamptz, $2::text::interval)`
	expiredSQL = `SELECT name FROM rate_limit_expired($1::text::timestamptz) WHERE state = 'attached'
		AND held_by IS NULL`
	dropSQL = `SELECT name, held_by FROM rate_limit_drop_expired($1::text::timestamptz)`

	// pendingSQL returns the sessions that use the partition, and those that use the whole table.
	pendingSQL = `SELECT p.name, rate_limit_holders(p.id), rate_limit_holders('rate_limit_audit'::regclass) ||
		' by way of rate_limit_audit'
		FROM rate_limit_partitions() p WHERE p.pending`

	// ownerSQL also returns the name of the table, quoted for a command.
	ownerSQL = `SELECT format('%I.%I', n.nspname, c.relname), pg_has_role(c.relowner, 'USAGE')::int::text
		FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE c.oid = 'rate_limit_audit'::regclass`
)

func (u *upkeep) run(ctx context.Context) error {
	did, err := query(ctx, u.db, 3, upkeepSQL, u.now, intervalText(u.interval))
	if err != nil {
		return err
	}
	for _, row := range did {
		switch string(row[0]) {
		case "busy":
			u.report.Busy = true
			return nil
		case "made":
			u.report.Made = append(u.report.Made, string(row[1]))
		case "skipped":
			u.skip(string(row[1]), "another session")
		case "deleted":
			u.report.Deleted += number(row[2])
		}
	}
	owner, err := query(ctx, u.db, 2, ownerSQL)
	if err != nil {
		return err
	}
	if len(owner) == 1 && string(owner[0][1]) == "1" {
		err = u.detachExpired(ctx, string(owner[0][0]))
	}
	return errors.Join(err, u.dropExpired(ctx))
}

// detachExpired detaches the partitions that are past their retention. Only one partition can be
// pending detach at a time, so it skips those in use. dropExpired handles the ones that are left, and
// reports their users.
func (u *upkeep) detachExpired(ctx context.Context, parent string) error {
	pending, err := u.finalize(ctx, parent)
	if err != nil || pending {
		return err
	}
	expired, err := query(ctx, u.db, 1, expiredSQL, u.now)
	if err != nil {
		return err
	}
	for _, row := range expired {
		name := string(row[0])
		if u.command(ctx, "ALTER TABLE "+parent+" DETACH PARTITION "+name+" CONCURRENTLY") == nil {
			u.report.Detached = append(u.report.Detached, name)
			continue
		}
		// A transaction that uses other partitions can keep the command from ending, and need not
		// keep its second part from it.
		if pending, err := u.finalize(ctx, parent); err != nil || pending {
			return err
		}
	}
	return nil
}

// finalize completes an interrupted detach of this or another process. It reports whether a partition
// is still pending afterwards.
func (u *upkeep) finalize(ctx context.Context, parent string) (bool, error) {
	var failure error
	for {
		found, err := query(ctx, u.db, 3, pendingSQL)
		if err != nil || len(found) == 0 {
			return false, err
		}
		name := string(found[0][0])
		holders := found[0][1]
		if holders == nil && failure != nil {
			holders = found[0][2]
		}
		if holders != nil {
			u.skip(name, string(holders))
			return true, nil
		}
		if failure != nil {
			return true, fmt.Errorf("%s: %w", name, failure)
		}
		if failure = u.command(ctx,
			"ALTER TABLE "+parent+" DETACH PARTITION "+name+" FINALIZE"); failure == nil {
			u.report.Detached = append(u.report.Detached, name)
			return false, nil
		}
	}
}

// dropExpired drops the partitions that are past their retention.
func (u *upkeep) dropExpired(ctx context.Context) error {
	rows, err := query(ctx, u.db, 2, dropSQL, u.now)
	for _, row := range rows {
		if row[1] != nil {
			u.skip(string(row[0]), string(row[1]))
		} else {
			u.report.Dropped = append(u.report.Dropped, string(row[0]))
		}
	}
	return err
}

// skip adds a partition in use to the report, once.
func (u *upkeep) skip(name, holders string) {
	for _, before := range u.report.Skipped {
		if strings.HasPrefix(before, name+": ") {
			return
		}
	}
	u.report.Skipped = append(u.report.Skipped, name+": held by "+holders)
}

// command runs a command that must not be part of a transaction. It sets its own timeouts, because such
// a command has no guard; see package pg.
func (u *upkeep) command(ctx context.Context, sql string) error {
	within, cancel := context.WithTimeout(ctx, ddlTimeout)
	defer cancel()
	command := &pgdb.Statement{SQL: sql, Unnamed: true, Alone: true}
	statements := []*pgdb.Statement{{SQL: "SET statement_timeout = 0", Alone: true},
		{SQL: "SET lock_timeout = 0", Alone: true}, command,
		{SQL: "RESET statement_timeout", Alone: true}, {SQL: "RESET lock_timeout", Alone: true}}
	if err := u.db.Run(within, statements); err != nil {
		return err
	}
	return command.Err
}

// query runs a query with parameters of type text, and returns the values of its rows. NULL is nil, and
// an empty text is not.
func query(ctx context.Context, db pgdb.DB, columns int, sql string, args ...string) ([][][]byte, error) {
	statement := &pgdb.Statement{SQL: sql, Unnamed: true}
	for _, arg := range args {
		statement.Args = append(statement.Args, arg)
	}
	if err := db.Run(ctx, []*pgdb.Statement{statement}); err != nil {
		return nil, err
	}
	if statement.Err != nil {
		return nil, statement.Err
	}
	values, err := pg.Columns(statement.Result)
	if err != nil {
		return nil, err
	}
	var rows [][][]byte
	for ; len(values) >= columns; values = values[columns:] {
		rows = append(rows, values[:columns:columns])
	}
	return rows, nil
}

// number returns the value of a bigint, and 0 for NULL.
func number(value []byte) int64 {
	if len(value) != 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(value))
}
