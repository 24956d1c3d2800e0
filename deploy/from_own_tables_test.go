package deploy

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// The script from-own-tables.sql copies the rules, users and keys of another program's tables, even if it
// runs twice, and reports what it cannot copy. Then the old keys work, with their limits, and the rules
// apply.
func TestOwnTablesAreTakenOver(t *testing.T) {
	dsn := cluster.Open(t)
	cluster.Execute(t, dsn, readFile(t, "testdata/own-tables.sql"))
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
	harness.RunCaddy(t, "", harness.Caddy(t, root), address, config, "DATABASE_URL="+dsn)
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
