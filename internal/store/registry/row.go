package registry

import (
	"context"
	"strconv"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// sweepNodes is the time between two deletions of the rows of vanished proxies.
const sweepNodes = time.Hour

// nodeSQL renews the row. It returns a row, with why the process makes no decisions, unless the name is that of another
// process which is not gone. What the policy has applied stays if this store has no policy: another store of the
// process may have one.
const nodeSQL = `INSERT INTO rate_limit_nodes AS n (node, version, epoch, applied_seq, problems, log, region, cannot, seen)
VALUES ($1, nullif($2, ''), $3, $4::bigint, coalesce($5::text[], '{}'), $6::text::oid, nullif($7, ''), ` + schema.Cannot + `, now())
ON CONFLICT (node) DO UPDATE SET version = excluded.version, region = excluded.region, cannot = excluded.cannot, ended = NULL, system = excluded.system, epoch = excluded.epoch, seen = excluded.seen,
	applied_seq = CASE WHEN n.epoch = excluded.epoch THEN coalesce($4::bigint, n.applied_seq) ELSE excluded.applied_seq END,
	problems = CASE WHEN n.epoch = excluded.epoch THEN coalesce($5::text[], n.problems) ELSE excluded.problems END,
	log = CASE WHEN n.epoch = excluded.epoch THEN coalesce($6::text::oid, n.log) ELSE excluded.log END
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

// row is what a process knows of its row.
type row struct {
	suffix  int       // of the name; 0 is none
	listed  bool      // there is a row of the name
	renewed time.Time // when the row was renewed
	shown   applied   // what it says is applied
	cannot  string    // what was reported of why the process makes no decisions
	swept   time.Time
	writeAt time.Time     // when to write again after a refusal of the server
	writeIn time.Duration // the time to writeAt; 0 if the server has not refused
}

// retry sets when to write again after a refusal of the server.
func (w *row) retry(now time.Time) { w.writeAt = retryAt(now, &w.writeIn) }

// retryAt is when to try again after another refusal of the server. wait is the time to the last
// attempt, and then to this one.
func retryAt(now time.Time, wait *time.Duration) time.Time {
	*wait *= 2
	if *wait == 0 {
		*wait = nodeRetry
	}
	if *wait > longestRetry {
		*wait = longestRetry
	}
	return now.Add(*wait)
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
	return !now.Before(w.writeAt) && (age >= heartbeatInterval || news && age >= newsInterval)
}

// renewals renew the row. A process with a suffix also tries to take the name without one. Now and then
// there is another statement: the deletion of the rows of proxies that ended or vanished.
func (r *Registry) renewals(now time.Time) []*pgdb.Statement {
	r.mu.Lock()
	obeyed, problems := r.applied, r.problems
	r.mu.Unlock()
	w := &r.row
	var seq, log, texts any
	if obeyed.seq >= 0 {
		seq = obeyed.seq
		log = obeyed.log
		texts = problems
	}
	w.shown = obeyed
	w.renewed = now
	names := []string{r.node.Name}
	if w.suffix > 0 {
		names = append(names, r.name())
	}
	var all []*pgdb.Statement
	for _, name := range names {
		all = append(all, &pgdb.Statement{SQL: nodeSQL,
			Args: []any{name, r.node.Version, r.node.Epoch, seq, texts, log, r.node.Region}, Unnamed: true})
	}
	if now.Sub(w.swept) >= sweepNodes {
		w.swept = now
		all = append(all, &pgdb.Statement{SQL: sweepSQL, Unnamed: true})
	}
	return all
}

// readRenewals reads the results of renewals.
func (r *Registry) readRenewals(writes []*pgdb.Statement, now time.Time) {
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
	if first.Err == nil {
		w.writeIn = 0
	}
	switch {
	case first.Err != nil:
		w.listed = false
		w.retry(now)
		r.migrated = first.Code != "42P01" && first.Code != "42703" // a table or a column is missing
	case first.Rows == 1:
		if w.suffix > 0 {
			r.write(leaveSQL, r.name())
		}
		w.suffix = 0
		w.listed = true
	case w.suffix > 0 && writes[1].Err == nil && writes[1].Rows == 1:
		w.listed = true
	default:
		w.listed = false
		w.renewed = time.Time{} // try the next name at once
		w.suffix++
		if w.suffix == 1 {
			w.suffix = 2
		}
	}
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
