package caddymodule_test

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

// otherWords are names for outcomes that are not in the vocabulary, as parts of names.
var otherWords = strings.Fields("accept accepted allow allowed decline declined deny denied error errors " +
	"throttled undecided")

// The page about metrics has each word for an outcome, and Caddy, the page, the alerts, the dashboard and the
// audit log use these words and no others.
func TestOutcomesAreWordsOfTheVocabulary(t *testing.T) {
	words := captured("(?m)^\\| `([a-z]+)` \\| [^|]+ \\| (?:yes|no|only|as) ?[^|]*\\|$",
		readFile(t, metricsPage))
	check.Equal(t, "the words of "+metricsPage, strings.Join(words, " "), strings.Join(outcome.Words, " "))
	startWithMetrics(t)
	_, metrics := metricsOfCaddy(t)
	dsn := cluster.Open(t, schema.File)
	check.Equal(t, "tables and views that have some outcomes", strings.Join(cluster.Texts(t, dsn,
		"SELECT attrelid::regclass::text FROM pg_attribute WHERE attname IN ('"+strings.Join(words, "', '")+
			"') GROUP BY attrelid HAVING count(*) <> "+strconv.Itoa(len(words))), " "), "")
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

// No label, column, argument, attribute, placeholder or field has a name for outcomes that is not in the
// vocabulary.
func TestNamesHaveWordsOfTheVocabulary(t *testing.T) {
	startWithMetrics(t)
	_, metrics := metricsOfCaddy(t)
	serve, dsn := readFile(t, "serve.go"), cluster.Open(t, schema.File)
	fields := readFile(t, "../internal/plane/evaluate/explain.go") +
		readFile(t, "../internal/plane/evaluate/replay.go") +
		readFile(t, "../internal/store/registry/node.go")
	for kind, names := range map[string][]string{
		"label":       captured(`[{,]([a-z_]+)="`, metrics+textOfPage(t)),
		"attribute":   captured(`"pg_ratelimit\.([a-z_]+)"`, serve),
		"placeholder": captured(`case "([a-z_]+)"`, serve),
		"event":       captured(`"([a-z_]+)": `, serve),
		"field":       captured(`json:"([a-z_]+)`, fields),
		"column": cluster.Texts(t, dsn, `SELECT DISTINCT a.attname FROM pg_attribute a JOIN pg_class c
			ON c.oid = a.attrelid WHERE c.relname LIKE 'rate\_limit\_%' AND a.attnum > 0 ORDER BY 1`),
		"argument": cluster.Texts(t, dsn, `SELECT DISTINCT name FROM pg_proc, unnest(proargnames) AS name
			WHERE proname LIKE 'rate\_limit\_%' AND name <> '' ORDER BY 1`),
	} {
		if len(names) < 5 {
			t.Errorf("%ss are %q, want at least 5", kind, names)
		}
		for _, name := range names {
			for _, part := range strings.Split(name, "_") {
				if slices.Contains(otherWords, part) {
					t.Errorf("the %s %s has the word %q, want one of %q", kind, name, part, outcome.Words)
				}
			}
		}
	}
}
