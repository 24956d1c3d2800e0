package registry

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// rowSQL renews the row, and deletes those of earlier processes of its name and of processes that were silent
// for a day. A store without a policy, or without local limits, leaves what another store of the process has
// written.
const rowSQL = `WITH gone AS (DELETE FROM rate_limit_nodes n WHERE n.seen < now() - interval '1 day'
	OR n.node = $1::text AND n.epoch <> $2::bigint AND NOT ` + schema.NodeIsLive + `)
INSERT INTO rate_limit_nodes AS n (node, epoch, version, region, seen, applied_seq, log, problems,
	local_from, local_until, admitted, refused, undecided, locally, busiest, undecided_at, cannot)
VALUES ($1::text, $2::bigint, nullif($3::text, ''), nullif($4::text, ''), now(), $5::bigint, $6::text::oid,
	coalesce($7::text[], '{}'), now() - $8::bigint * interval '1 us', now() - $9::bigint * interval '1 us',
	$10::bigint, $11::bigint, $12::bigint, $13::bigint, $14::text::jsonb,
	now() - $15::bigint * interval '1 us',
	` + schema.MissingGrants + `)
ON CONFLICT (node, epoch) DO UPDATE SET version = excluded.version, region = excluded.region,
	seen = excluded.seen, ended = NULL, system = excluded.system, cannot = excluded.cannot,
	admitted = excluded.admitted, refused = excluded.refused, undecided = excluded.undecided,
	locally = excluded.locally, busiest = excluded.busiest, undecided_at = excluded.undecided_at,
	applied_seq = coalesce(excluded.applied_seq, n.applied_seq), log = coalesce(excluded.log, n.log),
	problems = coalesce($7::text[], n.problems),
	local_from = coalesce(excluded.local_from, n.local_from),
	local_until = coalesce(excluded.local_until, n.local_until)`

// endedSQL ends the row. cannotSQL returns why the process makes no decisions, also to one that may not write
// its row. liveSQL counts the proxies, and the row of this process among them.
const (
	endedSQL  = `UPDATE rate_limit_nodes SET ended = now() WHERE node = $1 AND epoch = $2`
	cannotSQL = `SELECT coalesce(` + schema.MissingGrants + `, '')`
	liveSQL   = `SELECT count(*), count(*) FILTER (WHERE n.node = $1 AND n.epoch = $2::bigint)
	FROM rate_limit_nodes n WHERE ` + schema.NodeIsLive
)

// mostProblems bounds the bytes of problems in the row. Reports of the policy have all of them.
const maxProblems = 400

// cutProblems returns the first problems, within mostProblems, and how many follow them.
func cutProblems(problems []string) []string {
	cut := make([]string, 0, len(problems)) // nil would be NULL
	size := 0
	for i, text := range problems {
		if size += len(text); size > maxProblems {
			left := len(problems) - i
			if i == 0 {
				cut = append(cut, strings.ToValidUTF8(text[:maxProblems], "")+" …")
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

// isDue reports whether the row is to be renewed.
func (r *Registry) isDue(now time.Time) bool {
	r.mu.Lock()
	news := !r.written || r.applied != r.writtenChange
	r.mu.Unlock()
	age := now.Sub(r.writtenAt)
	return age >= heartbeatInterval || news && age >= pollInterval
}

// renewal returns the statement that renews the row.
func (r *Registry) renewal(now time.Time) *pgdb.Statement {
	var seq, log, problems, since, until, admitted, refused, undecided, locally, busiest, undecidedAt any
	r.mu.Lock()
	if r.writtenChange = r.applied; r.writtenChange.seq >= 0 {
		seq, log, problems = r.writtenChange.seq, r.writtenChange.log, r.problems
	}
	r.mu.Unlock()
	if l := r.store.Local(); !l.On && !l.Since.IsZero() {
		since, until = now.Sub(l.Since).Microseconds(), now.Sub(l.Last).Microseconds()
	}
	if r.node.Totals != nil {
		t := r.node.Totals()
		admitted, refused, undecided, locally, busiest = t.Admitted, t.Refused, t.Undecided, t.Local,
			t.Busiest
		if !t.UndecidedAt.IsZero() {
			undecidedAt = now.Sub(t.UndecidedAt).Microseconds()
		}
	}
	r.writtenAt = now
	return &pgdb.Statement{SQL: rowSQL, Unnamed: true, Args: []any{r.node.Name, r.node.Epoch, r.node.Version,
		r.node.Region, seq, log, problems, since, until, admitted, refused, undecided, locally, busiest,
		undecidedAt}}
}

// readRenewal reads the results of the statements rowSQL and cannotSQL.
func (r *Registry) readRenewal(renewal, cannot *pgdb.Statement) {
	r.written = renewal.Err == nil
	if renewal.Code == "42P01" || renewal.Code == "42703" { // a table or a column is missing
		r.migrated = false
	}
	if cannot.Err != nil || len(cannot.Result) < 4 {
		return
	}
	var err error
	if text := string(cannot.Result[4:]); text != "" {
		err = errors.New("this proxy makes no decisions, because its role lacks privileges. To let it: " +
			text)
	}
	r.report("cannot", err)
}

// readLive reads how many proxies run. After an outage, those that have not come back yet count. So they do
// after a crash that emptied the table between two polls, when no Run failed: the row of this process is
// missing.
func (r *Registry) readLive(s *pgdb.Statement, now time.Time) {
	counts := pg.Bigints(s.Result)
	if s.Err != nil || len(counts) != 2 {
		return
	}
	n, own := counts[0], counts[1]
	if !r.countedAt.IsZero() && now.Sub(r.countedAt) > staleAfter || r.written && own == 0 {
		r.exactFrom = now.Add(returnTime)
	}
	r.countedAt = now
	if n > r.proxies || n > 0 && now.After(r.exactFrom) {
		r.proxies = n
		r.store.SetProxies(n)
	}
}

// errDown is the error of makeTables for a connection that failed.
var errDown = errors.New("no connection")

// makeTables makes or upgrades the tables of the registry.
func makeTables(ctx context.Context, db pgdb.DB) error {
	counts, nodes := &pgdb.Statement{SQL: schema.Ready}, &pgdb.Statement{SQL: schema.NodesReady}
	if db.Run(ctx, []*pgdb.Statement{counts, nodes}) != nil {
		return errDown
	}
	if counts.Err != nil || nodes.Err != nil {
		return fmt.Errorf("looking for the tables: %w", errors.Join(counts.Err, nodes.Err))
	}
	// The tables of counts were there.
	if found := pg.Bigints(counts.Result); len(found) != 3 || found[0] != 1 || found[2] == 1 {
		return schema.ErrRestoring
	}
	if found := pg.Bigints(nodes.Result); len(found) == 1 && found[0] == 1 {
		return nil
	}
	if err := db.Exec(ctx, schema.NodesOnce); err != nil {
		return fmt.Errorf("creating its tables (a role that may create tables can run caddy pg-ratelimit "+
			"migrate, or schema.sql, instead): %w", err)
	}
	return nil
}
