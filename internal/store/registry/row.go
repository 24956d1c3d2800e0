package registry

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/core/sqlstate"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// nodeSQL renews the row. It returns a row, with why the process makes no decisions, unless the name is that of another
// process which is not gone. What the policy has applied stays if this store has no policy, and when limits were local if
// its limits were not: another store of the process may know it.
const nodeSQL = `INSERT INTO rate_limit_nodes AS n (node, version, epoch, applied_seq, problems, log, region, cannot, seen,
	local_from, local_until, admitted, refused, undecided, locally, busiest, undecided_at)
VALUES ($1, nullif($2, ''), $3, $4::bigint, coalesce($5::text[], '{}'), $6::text::oid, nullif($7, ''), ` + schema.Cannot + `, now(),
	now() - $8::bigint * interval '1 microsecond', now() - $9::bigint * interval '1 microsecond',
	$10::bigint, $11::bigint, $12::bigint, $13::bigint, $14::text::jsonb,
	now() - $15::bigint * interval '1 microsecond')
ON CONFLICT (node) DO UPDATE SET version = excluded.version, region = excluded.region, cannot = excluded.cannot, ended = NULL,
	system = excluded.system, epoch = excluded.epoch, seen = excluded.seen, admitted = excluded.admitted, refused = excluded.refused,
	undecided = excluded.undecided, locally = excluded.locally, busiest = excluded.busiest,
	undecided_at = excluded.undecided_at,
	applied_seq = CASE WHEN n.epoch = excluded.epoch THEN coalesce($4::bigint, n.applied_seq) ELSE excluded.applied_seq END,
	problems = CASE WHEN n.epoch = excluded.epoch THEN coalesce($5::text[], n.problems) ELSE excluded.problems END,
	log = CASE WHEN n.epoch = excluded.epoch THEN coalesce($6::text::oid, n.log) ELSE excluded.log END,
	local_from = coalesce(excluded.local_from, n.local_from), local_until = coalesce(excluded.local_until, n.local_until)
WHERE n.epoch = excluded.epoch OR NOT ` + schema.NodeIsLive + `
RETURNING coalesce(n.cannot, '')`

// endedSQL says that a process has ended. leaveSQL deletes the row of a name that a process has no more, and sweepSQL
// those of processes that ended or vanished. cannotSQL is for a process that cannot write its row.
const (
	endedSQL  = `UPDATE rate_limit_nodes SET ended = now() WHERE node = $1 AND epoch = $2`
	cannotSQL = `SELECT coalesce(` + schema.Cannot + `, '')`
	leaveSQL  = `DELETE FROM rate_limit_nodes WHERE node = $1 AND epoch = $2`
	sweepSQL  = `DELETE FROM rate_limit_nodes WHERE seen < now() - interval '1 day'`
)

const (
	// sweepInterval is the time between two deletions of the rows of vanished proxies.
	sweepInterval = time.Hour
	// firstRetry is the time to the next attempt after a refusal of the server. During a restore the tables are not there
	// for a while. Each refusal doubles the time, up to longestRetry.
	firstRetry   = time.Second
	longestRetry = time.Minute
	// mostProblems bounds the bytes of problems in the row. Reports of the policy have all of them.
	mostProblems = 400
)

// refusals are those of a statement since its last success.
type refusals struct {
	until time.Time // when to try again
	wait  time.Duration
}

// add counts a refusal.
func (f *refusals) add(now time.Time) {
	f.wait *= 2
	if f.wait == 0 {
		f.wait = firstRetry
	}
	if f.wait > longestRetry {
		f.wait = longestRetry
	}
	f.until = now.Add(f.wait)
}

// cutProblems returns the first problems, within mostProblems, and how many follow them.
func cutProblems(problems []string) []string {
	cut := make([]string, 0, len(problems)) // nil would be NULL
	size := 0
	for i, text := range problems {
		if size += len(text); size > mostProblems {
			left := len(problems) - i
			if i == 0 {
				cut = append(cut, strings.ToValidUTF8(text[:mostProblems], "")+" …")
				left--
			}
			if left > 0 {
				cut = append(cut, "and "+strconv.Itoa(left)+" more")
			}
			break
		}
		cut = append(cut, text)
	}
	return cut
}

// row is what a process knows of its row.
type row struct {
	suffix   int       // of the name; 0 is none
	listed   bool      // there is a row of the name
	renewed  time.Time // when the row was renewed
	shown    applied   // what it says is applied
	cannot   string    // what was reported of why the process makes no decisions
	swept    time.Time
	refusals refusals
}

// name is the name of the row.
func (r *Registry) name() string {
	if r.row.suffix == 0 {
		return r.node.Name
	}
	return r.node.Name + "#" + strconv.Itoa(r.row.suffix)
}

// isDue reports whether the row is to be renewed now.
func (r *Registry) isDue(now time.Time) bool {
	r.mu.Lock()
	obeyed := r.applied
	r.mu.Unlock()
	w := &r.row
	age := now.Sub(w.renewed)
	news := !w.listed || obeyed != w.shown
	return !now.Before(w.refusals.until) && (age >= heartbeatInterval || news && age >= newsInterval)
}

// renewals renew the row. A process with a suffix also tries to take the name without one. Now and then
// there is another statement: the deletion of the rows of proxies that ended or vanished.
func (r *Registry) renewals(now time.Time) []*pgdb.Statement {
	w := &r.row
	args := []any{"", r.node.Version, r.node.Epoch, nil, nil, nil, r.node.Region, nil, nil, nil, nil, nil, nil, nil, nil}
	r.mu.Lock()
	if w.shown = r.applied; w.shown.seq >= 0 {
		args[3], args[4], args[5] = w.shown.seq, r.problems, w.shown.log
	}
	r.mu.Unlock()
	if l := r.store.Local(); !l.On && !l.Since.IsZero() {
		args[7], args[8] = now.Sub(l.Since).Microseconds(), now.Sub(l.Last).Microseconds()
	}
	if r.node.Totals != nil {
		t := r.node.Totals()
		args[9], args[10], args[11], args[12], args[13] = t.Admitted, t.Refused, t.Undecided, t.Local, t.Busiest
		if !t.UndecidedAt.IsZero() {
			args[14] = now.Sub(t.UndecidedAt).Microseconds()
		}
	}
	w.renewed = now
	names := []string{r.node.Name}
	if w.suffix > 0 {
		names = append(names, r.name())
	}
	var all []*pgdb.Statement
	for _, name := range names {
		all = append(all, &pgdb.Statement{SQL: nodeSQL, Args: append([]any{name}, args[1:]...), Unnamed: true})
	}
	if now.Sub(w.swept) >= sweepInterval {
		w.swept = now
		all = append(all, &pgdb.Statement{SQL: sweepSQL, Unnamed: true})
	}
	return all
}

// readRenewals reads the results of renewals.
func (r *Registry) readRenewals(ctx context.Context, writes []*pgdb.Statement, now time.Time) {
	w := &r.row
	first, last := writes[0], writes[len(writes)-1]
	if last.SQL == sweepSQL {
		r.fail("sweep", last.Err)
	}
	r.fail("write", first.Err)
	for _, s := range writes {
		if s.SQL == nodeSQL && s.Rows == 1 {
			r.readCannot(s)
		}
	}
	w.listed = first.Err == nil
	switch {
	case first.Err != nil:
		w.refusals.add(now)
		r.migrated = first.Code != "42P01" && first.Code != "42703" // a table or a column is missing
		if look := (&pgdb.Statement{SQL: cannotSQL, Unnamed: true}); first.Code == sqlstate.InsufficientPrivilege &&
			r.db.Run(ctx, []*pgdb.Statement{look}) == nil {
			r.readCannot(look)
		}
		return
	case first.Rows == 1:
		if w.suffix > 0 {
			r.write(leaveSQL, r.name())
		}
		w.suffix = 0
	case w.suffix == 0:
		w.suffix = 2
		w.listed, w.renewed = false, time.Time{} // try the next name at once
	case writes[1].Err != nil || writes[1].Rows == 0:
		w.suffix++
		w.listed, w.renewed = false, time.Time{}
	}
	w.refusals = refusals{}
}

// readCannot reads why the process makes no decisions, and reports it once.
func (r *Registry) readCannot(s *pgdb.Statement) {
	if s.Err != nil || len(s.Result) < 4 {
		return
	}
	text := string(s.Result[4:])
	if text != "" && text != r.row.cannot {
		r.report("this proxy makes no decisions, because its role lacks privileges. To let it: " + text)
	}
	r.row.cannot = text
}

// write deletes a row of this process, or ends it.
func (r *Registry) write(sql, name string) {
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	// After a failure the row is that of a proxy that vanished.
	_ = r.db.Run(ctx, []*pgdb.Statement{{SQL: sql, Args: []any{name, r.node.Epoch}, Unnamed: true}})
}
