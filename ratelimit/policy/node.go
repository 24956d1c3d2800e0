package policy

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// nodeSQL says how far a node is.
const nodeSQL = `INSERT INTO rate_limit_nodes AS n (node, region, version, applied_seq, seen, problems, log) VALUES ($1, nullif($2, ''), nullif($3, ''), $4, now(), $5, $6::text::oid)
ON CONFLICT (node) DO UPDATE SET region = excluded.region, version = excluded.version, applied_seq = excluded.applied_seq, seen = excluded.seen, problems = excluded.problems, log = excluded.log`

// occasionally does what is due from time to time. The caller holds refreshing. A failure is
// reported and has no other effect.
func (p *Policy) occasionally(ctx context.Context) {
	now := p.settings.Now()
	p.mu.Lock()
	applied := p.stats.Applied
	p.mu.Unlock()
	age := now.Sub(p.shown)
	if p.settings.Node != "" && (age >= shownAge || applied != p.shownSeq && age >= shownPause || p.poller.log != p.shownLog) {
		p.shown = now
		p.shownSeq = applied
		p.shownLog = p.poller.log
		problems := wrongTexts(p.Wrong())
		p.report("node", p.write(ctx, &postgres.Statement{
			SQL: nodeSQL, Args: []any{p.settings.Node, p.settings.Region, p.settings.Version, applied, problems, p.poller.log},
		}, "writing rate_limit_nodes"))
	}
	if now.Sub(p.forgotten) >= forgetPause {
		p.forgotten = now
		p.report("forget", p.forget(ctx))
	}
}

// write runs a statement that returns nothing.
func (p *Policy) write(ctx context.Context, statement *postgres.Statement, what string) error {
	within, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	if _, err := runOne(within, p.db, statement, 0); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// forgetRounds bounds what one forget deletes, in statements of forgetMost changes.
const forgetRounds = 100

// forget deletes what is too old.
func (p *Policy) forget(ctx context.Context) error {
	for round := 0; round < forgetRounds; round++ {
		within, cancel := context.WithTimeout(ctx, 10*time.Second)
		rows, err := runOne(within, p.db, &postgres.Statement{SQL: "SELECT rate_limit_forget()::text"}, 1)
		cancel()
		if err != nil || len(rows) != 1 {
			return fmt.Errorf("deleting old changes: %w", err)
		}
		if n, err := strconv.ParseInt(rows[0], 10, 64); err != nil || n < forgetMost {
			return nil
		}
	}
	return nil
}
