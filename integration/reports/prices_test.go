package reports

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// usesTwo is an upstream that reports a token of input and one of output.
func usesTwo(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprint(w, `{"usage":{"prompt_tokens":1,"completion_tokens":1}}`)
}

// budget is a site with limits of ann. A token of the model dear-ID costs a millionth, local-ID is free, and
// long-ID is free up to 1,000 tokens of input.
func budget(limits string, asks ...ask) site {
	for i := range asks {
		asks[i].headers = "X-Api-Key: KEY"
		asks[i].line = `POST / {"max_tokens":9,"model":"` + asks[i].line + `-ID"}`
	}
	return site{policy: withKey, upstream: usesTwo, asks: asks,
		sql: `SELECT rate_limit_rule('ID', hosts => '{HOST}', limits => '{` + limits + `}');
			SELECT rate_limit_price('dear-ID', 1, 1), rate_limit_price('local-ID', 0, 0, 0, 0),
				rate_limit_price('long-ID', 0, 0, above => 1000, above_input => 0, above_output => 1);`}
}

// charged adds to a site a check of what each model has been charged for its requests, by the ledger.
func charged(s site, want string) site {
	s.check = func(v *visit) {
		const rows = `SELECT coalesce(string_agg(x, ', ' ORDER BY x), '') FROM (SELECT concat_ws(' ',
				left(l.model, strpos(l.model, '-') - 1), c ->> 'units', '×', count(*)) AS x
			FROM rate_limit_ledger l, jsonb_array_elements(l.charges) c
			WHERE l.model LIKE '%-' || $1 AND c ->> 'unit' = 'money'
			GROUP BY l.model, c ->> 'units') AS r`
		v.Await("charges of "+want, func() bool {
			return cluster.Query[string](v, v.dsn, rows, v.id) == want
		})
	}
	return s
}

var priced = []report{
	{"F18", "mozilla-ai/any-llm#786", []site{
		charged(budget("a=0.000002 money/30d", ask{line: "local", want: "200×1"},
			ask{line: "dear", want: "200×1"}, ask{n: 3, line: "dear", want: "429×3"},
			ask{n: 3, line: "local", want: "200×3"}, ask{line: "long", want: "429×1"},
			ask{line: "dear", want: "429×1"}), "dear 2 × 1, local 0 × 4"),
		charged(budget("a=0.000002 money/24h,b=4/24h", ask{line: "dear", want: "200×1"},
			ask{n: 5, line: "local", want: "200×3 429×2"}), "dear 2 × 1, local 0 × 3"),
		budget("a=0.000002 money/24h,b=2 tokens/24h", ask{line: "dear", want: "200×1"},
			ask{n: 2, line: "local", want: "429×2"}),
		budget("a=0 money/1mo calendar", ask{n: 2, line: "local", want: "429×2"}),
	}},
	{"no-price", "near F18", []site{unpriced()}},
}

// unpriced is a site with a model without a price, which the response, the commands and the log name.
func unpriced() site {
	s := budget("a=5 money/1mo calendar", ask{line: "new", want: "400×1",
		body: `{"type":"error","error":{"message":"The model \"new-no-price-…`})
	s.handler = "audit denied"
	s.check = func(v *visit) {
		model := "new-" + v.id
		v.Await("the audit log", func() bool {
			return strings.Contains(v.command("why", "ann"), `no price of the model "`+model+`"`)
		})
		for _, args := range [][]string{{"audit", "--user", "ann"},
			{"explain", "--user", "ann", "--host", hostOf(v.id), "--model", model}} {
			out := v.command(args...)
			if !strings.Contains(out, model) || !strings.Contains(out, "price") {
				v.Errorf("%s prints %s, want the model %s", args[0], out, model)
			}
		}
		want := `model: "` + model + `": must be one with a price`
		if !strings.Contains(unquote(v.proxy.Log()), want) {
			v.Errorf("the log does not name the model %s", model)
		}
	}
	return s
}
