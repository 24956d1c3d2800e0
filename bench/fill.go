package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
)

// policyRowsOf returns SQL that creates n users on three tiers, each with one API key, and a rule for each
// tier. It creates one more user with a key for the requests that wait until a proxy is ready. The loads send
// the keys that keyName returns. Triggers and checks of foreign keys are off, because they would take most of
// the time.
func policyRowsOf(n int) string {
	return fmt.Sprintf(`
	SET LOCAL session_replication_role = replica;
	INSERT INTO rate_limit_tiers (tier) VALUES ('free'), ('pro'), ('enterprise');
	INSERT INTO rate_limit_users (user_id, tier)
		SELECT 'user-' || n, (ARRAY['free', 'pro', 'enterprise'])[1 + n %% 3] FROM generate_series(0, %[1]d)
		AS n;
	INSERT INTO rate_limit_api_keys (digest, user_id)
		SELECT sha256(convert_to(concat_ws('.', 10, n >> 16, n >> 8 & 255, n & 255), 'UTF8')), 'user-' || n
		FROM generate_series(0, %[1]d - 1) AS n
		UNION ALL SELECT sha256('ready'), 'user-%[1]d';
	SET LOCAL session_replication_role = DEFAULT;
	SELECT rate_limit_rule(tier, family => 'plan', priority => 100 + place, tiers => ARRAY[tier],
	algorithm => 'sliding_window', per_hour => 1000000)
		FROM unnest(ARRAY['free', 'pro', 'enterprise']) WITH ORDINALITY AS t(tier, place);
	ANALYZE`, n)
}

// budgetRows is SQL that gives each user a budget in money, and the model of prompts a price.
const budgetRows = `SELECT rate_limit_price('m', 2.5, 10);
	SELECT rate_limit_rule('budget', family => 'budget', methods => '{POST}',
		limits => '{month=1000000 money/1mo calendar}')`

// withPolicy returns the DSN of a database with a policy, in the tables of schema: that of a million API
// keys, or of 1,000 with budgets. Equal policies share it.
func (d *database) withPolicy(ctx context.Context, schema string, budgets bool) (dsn string) {
	rows := []string{schema, policyRowsOf(million)}
	if budgets {
		rows = []string{schema, policyRowsOf(1000), budgetRows}
	}
	name := strings.Join(rows, "")
	if d.policies[name] == "" {
		log.Print("filling the tables of a policy")
		dsn = d.create(ctx)
		query(ctx, dsn, rows...)
		d.policies[name] = dsn
	}
	return d.policies[name]
}

// schema returns the SQL that creates the tables for the proxy of a row.
func (b *bench) schema(r *row) string {
	if r.ofBaseVersion {
		if sql, err := os.ReadFile(filepath.Join(b.baseDir, "schema.sql")); err == nil {
			return string(sql)
		}
		command := exec.CommandContext(b.ctx, "go", "run", "./internal/release", "-schema")
		command.Dir = b.baseDir
		return string(must(command.Output()))
	}
	return schema.File
}

// fill sends one request for each of a million keys. The first call records the size of the
// table of counters, with indexes, for each key.
func (b *bench) fill(p *proxy) {
	log.Print("sending requests for a million keys")
	b.reportWrong(b.sendInTurn(p, million), p.row.name)
	bytes := query(b.ctx, p.dsn, "SELECT pg_total_relation_size('rate_limit_ephemeral') / "+
		"greatest(count(*), 1) FROM rate_limit_ephemeral")
	if len(b.figures) == 0 {
		b.figures = append(b.figures, []string{"bytes of the table for a key, with indexes", bytes})
	}
}
