package schema_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
)

// openEnglishDB makes an empty database with a collation that sorts "a" before "B".
func openEnglishDB(t *testing.T) *sqltest.DB {
	t.Helper()
	s := sqltest.Open(t)
	name := s.Query("SELECT current_database()")
	s.Exec("CREATE DATABASE " + name + "_en TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C' " +
		"LOCALE_PROVIDER icu ICU_LOCALE 'en-US'")
	t.Cleanup(func() { s.Exec("DROP DATABASE " + name + "_en WITH (FORCE)") })
	en := sqltest.Connect(t, strings.Replace(s.DSN, name, name+"_en", 1))
	en.Expect(`SELECT 'a' < 'B'`, "t")
	return en
}

// libraryTables makes the tables of the npm library, which have the collation of the database.
const libraryTables = `
	CREATE UNLOGGED TABLE rate_limit_ephemeral (prefix TEXT NOT NULL, key TEXT NOT NULL, count BIGINT,
		prev_count BIGINT, window_start TIMESTAMPTZ, tokens DOUBLE PRECISION, last_refill TIMESTAMPTZ,
		expires_at TIMESTAMPTZ NOT NULL, PRIMARY KEY (prefix, key));
	CREATE TABLE rate_limit_durable (LIKE rate_limit_ephemeral INCLUDING ALL);`

// byteOrderSQL returns the statements of the documentation that change the collation of the tables.
func byteOrderSQL(t *testing.T) string {
	t.Helper()
	text := sqltest.ReadFile(t, "../../docs/migrating-from-npm.md")
	statements := regexp.MustCompile(`(?m)^ *ALTER TABLE rate_limit_\w+ ALTER prefix .*;$`).FindAllString(
		text, -1)
	if len(statements) != 2 {
		t.Fatalf("the documentation has the statements %q, want 2", statements)
	}
	return strings.Join(statements, "\n")
}

// New tables sort keys by their bytes. Tables of the npm library sort keys by the collation of the database,
// until the statements of their page change that. With either order, the views return rows, and a proxy
// counts.
func TestDatabasesWithOtherCollations(t *testing.T) {
	for _, test := range []struct{ name, before, after, order string }{
		{"new tables", "", "", "B a"},
		{"tables of the npm library", libraryTables, "", "a B"},
		{"tables of the npm library with the statements of its page", libraryTables, byteOrderSQL(t), "B a"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := openEnglishDB(t)
			s.Exec(test.before + schema.File + test.after)
			s.Exec(`SELECT rate_limit_rule('r', per_minute => 10, algorithm => 'fixed_window');
				INSERT INTO rate_limit_tiers (tier, rank) VALUES ('free', 1);
				INSERT INTO rate_limit_users (user_id, tier) VALUES ('a', 'free'), ('B', 'free');
				INSERT INTO rate_limit_overrides (rule, limit_name, user_id, events)
					VALUES ('r', 'per_minute', 'a', 20);
				INSERT INTO rate_limit_ephemeral (prefix, key, count, window_start, expires_at)
					SELECT 'rule/r/per_minute', user_id, 9, date_trunc('minute', now()), now() + '1 h'
						FROM rate_limit_users`)
			s.Expect("SELECT string_agg(key, ' ' ORDER BY key) FROM rate_limit_ephemeral", test.order)
			s.Expect("SELECT key, quota FROM rate_limit_used ORDER BY quota", "B 10\na 20")
			s.Expect("SELECT key FROM rate_limit_near", "B")
			countHit(t, s.OpenDB("")).Close()
			s.Exec("DELETE FROM rate_limit_ephemeral WHERE prefix NOT LIKE 'rule/%'; DELETE FROM " +
				"rate_limit_durable")
			s.Expect("SELECT count(*) FROM rate_limit_ephemeral e FULL JOIN rate_limit_durable d USING "+
				"(prefix, key)", "2")
			s.Expect("SELECT count(*) FROM (SELECT key FROM rate_limit_ephemeral UNION SELECT key FROM "+
				"rate_limit_durable UNION SELECT user_id FROM rate_limit_bans) AS all_keys", "2")
		})
	}
}
