package deploy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// ownTables creates the tables of another rate limiter, with four rules and four users. The test adds the API
// keys.
const ownTables = `
CREATE TABLE rate_limit_rules (rule_id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
rule_name varchar(255) NOT NULL UNIQUE, priority integer NOT NULL DEFAULT 100,
	user_tier varchar(50), endpoint_pattern varchar(500), http_method varchar(10), ip_range cidr,
	algorithm varchar(50) NOT NULL,
	requests_per_second integer, requests_per_minute integer, requests_per_hour integer,
	requests_per_day integer, burst_size integer,
	action varchar(50) NOT NULL DEFAULT 'throttle', response_status integer DEFAULT 429,
	response_message text, retry_after_seconds integer,
	created_at timestamp DEFAULT now(), updated_at timestamp DEFAULT now(), created_by varchar(255),
	enabled boolean DEFAULT true);
CREATE TABLE user_quotas (user_id bigint PRIMARY KEY, tier varchar(50) NOT NULL DEFAULT 'free',
custom_limit_per_hour integer, custom_limit_per_day integer,
	custom_burst_size integer, is_blocked boolean DEFAULT false, block_reason text, blocked_until timestamp);
CREATE TABLE api_keys (api_key_id uuid PRIMARY KEY DEFAULT gen_random_uuid(),
api_key_hash varchar(255) NOT NULL UNIQUE, user_id bigint NOT NULL REFERENCES user_quotas (user_id),
	key_name varchar(255), tier varchar(50) NOT NULL DEFAULT 'free', requests_per_second integer,
	requests_per_hour integer, requests_per_day integer, burst_size integer,
	is_active boolean DEFAULT true, expires_at timestamp, revoked_at timestamp, revoked_by varchar(255));
INSERT INTO rate_limit_rules (rule_name, priority, user_tier, algorithm, requests_per_hour, burst_size)
VALUES ('free_tier_limit', 700, 'free', 'token_bucket', 1000, 20);
INSERT INTO rate_limit_rules (rule_name, priority, user_tier, algorithm, requests_per_hour)
VALUES ('pro_tier_limit', 650, 'pro', 'sliding_window', 5000);
INSERT INTO rate_limit_rules (rule_name, priority, endpoint_pattern, algorithm, requests_per_second)
VALUES ('api_v1_limit', 600, '/api/v1/*', 'sliding_window', 100000);
INSERT INTO rate_limit_rules (rule_name, endpoint_pattern, http_method, algorithm, action, response_status,
response_message)
	VALUES ('no_deletes', '/api/v1/*', 'delete', 'sliding_window', 'block', 405, 'read only');
INSERT INTO user_quotas (user_id, tier, custom_limit_per_hour, custom_burst_size, custom_limit_per_day)
VALUES (1, 'free', NULL, NULL, NULL), (2, 'pro', 7000, NULL, 9), (4, 'free', NULL, 30, NULL);
INSERT INTO user_quotas (user_id, is_blocked, block_reason) VALUES (3, true, 'fraud');
`

// The script from-own-tables.sql copies the rules, users and keys of another program's tables, even if it
// runs twice, and reports what it cannot copy. Then the old keys work, with their limits, and the rules
// apply.
func TestOwnTablesAreTakenOver(t *testing.T) {
	dsn := cluster.Open(t)
	cluster.Execute(t, dsn, ownTables)
	digest := func(key string) string {
		sum := sha256.Sum256([]byte(key))
		return hex.EncodeToString(sum[:])
	}
	cluster.Execute(t, dsn, fmt.Sprintf(`INSERT INTO api_keys (api_key_hash, user_id, key_name, tier,
		is_active, requests_per_hour) VALUES
		('%s', 1, 'laptop', 'free', true, NULL), ('%s', 2, '', 'pro', true, NULL), ('%s', 2, 'old', 'pro',
		false, NULL), ('%s', 3, 'of the blocked', 'free', true, NULL),
		('%s', 1, 'of a higher tier', 'pro', true, 6000),
		('$2b$12$abcdefghijklmnopqrstuuABCDEFGHIJKLMNOPQRSTUV0123456789ab', 1, 'bcrypt', 'free', true, NULL),
		('%s', 4, 'burst', 'free', true, NULL)`,
		digest("key-of-1"), strings.ToUpper(digest("key-of-2")), digest("revoked"), digest("key-of-3"),
		digest("pro-key-of-1"), digest("key-of-4")))
	script := readFile(t, "from-own-tables.sql")
	move := ""
	for _, command := range regexp.MustCompile(`-c '([^']*)'`).FindAllStringSubmatch(script, -1) {
		move += command[1] + ";"
	}
	for _, text := range []string{move, schema.File, script, script} {
		cluster.Execute(t, dsn, text)
	}
	rules := cluster.Texts(t, dsn, "SELECT concat_ws(' ', rule, name, algorithm, events, burst) "+
		"FROM rate_limit_rule_limits ORDER BY rule")
	const want = "api_v1_limit per_second sliding_window 100000, " +
		"free_tier_limit per_hour token_bucket 1000 20, pro_tier_limit per_hour sliding_window 5000"
	check.Equal(t, "the rules", strings.Join(rules, ", "), want)
	last := script[strings.LastIndex(script, "SELECT 'key '"):strings.LastIndex(script, "COMMIT;")]
	report := cluster.Texts(t, dsn, last)
	check.Equal(t, "the number of lines that the script reports", len(report), 2)
	for _, want := range []string{"of user 1: the digest is no SHA-256",
		"user 2: no rule of the tier pro has per_day"} {
		if !strings.Contains(strings.Join(report, "\n"), want) {
			t.Errorf("the script reports %q, want %s", report, want)
		}
	}
	address := harness.FreeAddress(t)
	config := "{\n\tadmin off\n}\nhttp://" + address +
		" {\n\tpg_ratelimit {\n\t\ttimeout 50s\n\t\ton_error deny\n\t\tpolicy {\n\t\t\tapi_key " +
		"{header.X-Api-Key}\n\t\t}\n\t}\n\trespond 200\n}\n"
	harness.RunCaddy(t, "", harness.Caddy(t, root), config, "DATABASE_URL="+dsn).AwaitAddress(t, address)
	for key, want := range map[string]string{"key-of-1": "200 20", "key-of-2": "200 7000", "revoked": "401 ",
		"key-of-3": "403 ", "pro-key-of-1": "200 6000", "key-of-4": "200 30", "invented": "401 "} {
		response := harness.Ask(t, harness.Get("http://"+address, "X-Api-Key", key))
		check.Equal(t, "status and limit with the key "+key,
			fmt.Sprint(response.Status, " ", response.Header.Get("X-RateLimit-Limit")), want)
	}
	request := harness.Get("http://"+address+"/api/v1/orders", "X-Api-Key", "key-of-1")
	request.Method = "DELETE"
	response := harness.Ask(t, request)
	if response.Status != 405 || !strings.Contains(response.Body, "read only") {
		t.Errorf("a request that a rule blocks: %d %s, want 405 with read only", response.Status,
			response.Body)
	}
}
