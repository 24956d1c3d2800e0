package policy_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
)

// A model has its own price, else that of the longest pattern, at the time of the request. Case does not
// count, and neither does an asterisk in the name that a request sends.
func TestModelsFindTheirPrices(t *testing.T) {
	day := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	price := func(model, input string, from, until int64) policy.Price {
		return policy.Price{Model: model, From: from, Until: until, Rates: []string{input, "0", "0", "0"}}
	}
	s := policy.Compile(nil, nil, nil, 0).WithPrices([]policy.Price{price("gpt-4o*", "1", 0, 0),
		price("gpt-4o-mini", "2", 0, 0), price("gpt-*", "3", 0, 0), price("new", "4", 0, 0),
		price("new", "5", day, 0), price("old*", "6", 0, day), price("o*", "7", 0, 0)})
	for model, want := range map[string]string{"gpt-4o": "1", "GPT-4o": "1", "gpt-4o-mini": "2",
		"gpt-4o-mini-2024": "1", "gpt-5": "3", "gpt-4o*": "1", "GPT-4O-MINI": "2", "new": "5", "old-1": "7",
		"claude": "-", "": "-", "*": "-"} {
		got := "-"
		if p := policy.PriceOf(s, model, day); p != nil {
			got = p.Rates[0]
		}
		check.Equal(t, model, got, want)
	}
	check.Equal(t, "before the day", policy.PriceOf(s, "new", day-1).Rates[0], "4")
	check.Equal(t, "before the end", policy.PriceOf(s, "old-1", day-1).Rates[0], "6")
}

// A cost is exact, and rounded up once. All tokens of a request with a long input have the higher prices.
func TestCostsAreExact(t *testing.T) {
	rows := []policy.Price{{Model: "m", Rates: []string{"2.5", "1.25", "3.125", "10"}, Above: 200000,
		AboveRates: []string{"5", "2.5", "6.25", "15"}}, {Model: "tiny", Rates: []string{"0.1", "0.1", "0.1",
		"0.000001"}}, {Model: "dear", Rates: []string{"1000000000", "0", "0", "0"}}}
	s := policy.Compile(nil, nil, nil, 0).WithPrices(rows)
	for _, c := range []struct {
		model  string
		tokens [4]int64
		want   int64
	}{
		{"m", [4]int64{}, 0},
		{"m", [4]int64{100, 50, 8, 7}, 408}, // 250 + 62.5 + 25 + 70, rounded up
		{"m", [4]int64{200000, 0, 0, 1}, 500010},
		{"m", [4]int64{199999, 1, 1, 1}, 1000019}, // 999995 + 2.5 + 6.25 + 15, rounded up
		{"tiny", [4]int64{1, 1, 1, 0}, 1}, {"tiny", [4]int64{10, 0, 0, 1000000}, 2},
		{"tiny", [4]int64{0, 0, 0, 1}, 1},
		{"dear", [4]int64{1 << 53, 0, 0, 0}, 1 << 53},
	} {
		p := policy.PriceOf(s, c.model, 0)
		got := p.Cost(c.tokens[0], c.tokens[1], c.tokens[2], c.tokens[3])
		check.Equal(t, fmt.Sprint(c.model, c.tokens), got, c.want)
	}
	check.Equal(t, "an estimate", policy.PriceOf(s, "m", 0).Estimate(1000, 10), 3225)
}
