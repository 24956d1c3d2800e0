package admin_test

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/outcome"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
)

// captured returns what the first group of a regular expression matches in a text, without duplicates.
func captured(expr, text string) (all []string) {
	for _, m := range regexp.MustCompile(expr).FindAllStringSubmatch(text, -1) {
		if !slices.Contains(all, m[1]) {
			all = append(all, m[1])
		}
	}
	return all
}

// The metrics, the audit log and the dashboard have each word for an outcome, and Caddy, the page, the alerts
// and the dashboard use no others.
func TestOutcomesAreWordsOfTheVocabulary(t *testing.T) {
	words := outcome.Words
	check.Equal(t, "the number of outcomes", int(outcome.Count), len(words))
	startWithMetrics(t)
	_, metrics := metricsOfCaddy(t)
	dsn := cluster.Open(t, schema.File)
	check.Equal(t, "tables and views that have some outcomes", strings.Join(cluster.Texts(t, dsn,
		"SELECT attrelid::regclass::text FROM pg_attribute WHERE attname IN ('"+strings.Join(words, "', '")+
			"') GROUP BY attrelid HAVING count(*) <> "+strconv.Itoa(len(words))), " "), "")
	var sums []string
	for _, word := range words {
		sums = append(sums, "sum("+word+") AS "+word)
	}
	sum := `sum\((?:` + strings.Join(words, "|") + `)\) AS \w+`
	dashboard := regexp.MustCompile(sum+"(?:, "+sum+")*").ReplaceAllString(readFile(t, dashboardFile),
		strings.Join(sums, ", "))
	check.Equal(t, "tables of outcomes in "+dashboardFile, strings.Count(dashboard, sums[0]), 2)
	golden.Check(t, dashboardFile, dashboard)
	constraint := cluster.Query[string](t, dsn,
		"SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname LIKE 'outcome_%' LIMIT 1")
	inTable := captured(`'([a-z]+)'::text`, constraint)
	check.Equal(t, "the outcomes of the audit log", strings.Join(inTable, " "), strings.Join(words, " "))
	texts := map[string]string{"Caddy": metrics, "the page": textOfPage(t),
		alertRules: readFile(t, alertRules), alertTests: readFile(t, alertTests),
		dashboardFile: readFile(t, dashboardFile)}
	for name, text := range texts {
		used := strings.Split(strings.Join(captured(`outcome(?:=|!=|=~|!~)\\?"([^"\\]+)`, text), "|"), "|")
		for _, word := range used {
			if !slices.Contains(words, word) {
				t.Errorf("%s has the outcome %q, want one of %q", name, word, words)
			}
		}
		if len(used) < 2 {
			t.Errorf("%s has the outcomes %q, want at least 2", name, used)
		}
	}
}
