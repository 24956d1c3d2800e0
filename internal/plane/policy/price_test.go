package policy_test

import (
	"fmt"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/llm"
)

// A model has its own price, else that of the longest pattern, at the time of the request. The case of ASCII
// letters and blanks at its ends do not count, and neither does an asterisk in the name that a request sends.
func TestModelsFindTheirPrices(t *testing.T) {
	day := time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC).UnixMicro()
	price := func(model, input string, from, until int64) policy.Price {
		return policy.Price{Model: model, From: from, Until: until, Rates: map[string]string{"input": input,
			"output": "0"}}
	}
	s := policy.Compile(nil, nil, nil, 0).WithPrices([]policy.Price{price("gpt-4o*", "1", 0, 0),
		price("gpt-4o-mini", "2", 0, 0), price("gpt-*", "3", 0, 0), price("new", "4", 0, 0),
		price("new", "5", day, 0), price("old*", "6", 0, day), price("o*", "7", 0, 0),
		price("\u212a*", "8", 0, 0)})
	for model, want := range map[string]string{"gpt-4o": "1", "GPT-4o": "1", "gpt-4o-mini": "2",
		"gpt-4o-mini-2024": "1", "gpt-5": "3", "gpt-4o*": "1", "\tGPT-4O-MINI\u00a0": "2",
		" ": "-", "kimi": "-", "\u212aIMI": "8", "new": "5", "old-1": "7", "claude": "-", "": "-", "*": "-"} {
		got := "-"
		if p := policy.PriceOf(s, model, day); p != nil {
			got = p.Rates["input"]
		}
		check.Equal(t, model, got, want)
	}
	check.Equal(t, "before the day", policy.PriceOf(s, "new", day-1).Rates["input"], "4")
	check.Equal(t, "before the end", policy.PriceOf(s, "old-1", day-1).Rates["input"], "6")
}

// ratesOf returns Price.Rates of a text such as "input=1 output=2".
func ratesOf(text string) map[string]string {
	rates := map[string]string{}
	for _, one := range strings.Fields(text) {
		name, rate, _ := strings.Cut(one, "=")
		rates[name] = rate
	}
	return rates
}

// priceWith returns a price with rates.
func priceWith(t *testing.T, rates map[string]string) *policy.Price {
	t.Helper()
	rows := []policy.Price{{Model: "m", Rates: rates}}
	p := policy.PriceOf(policy.Compile(nil, nil, nil, 0).WithPrices(rows), "m", 0)
	if p == nil {
		t.Fatalf("no price with %v", rates)
	}
	return p
}

// The answers of all APIs cost what their bills say, to the billionth.
func TestBillsOfAllPartsAreExact(t *testing.T) {
	prices, n := llm.Rates(t), 0
	for name, a := range llm.Answers(t) {
		if a.PriceOf == "" {
			continue
		}
		n++
		parts := a.Parts
		parts[option.Input] = max(parts[option.Input], 0)
		parts[option.Output] = max(parts[option.Output], 0) + a.Sent()
		want, _ := new(big.Rat).SetString(a.Money.String())
		got := priceWith(t, prices[a.PriceOf]).Cost(parts, a.Tier)
		check.Equal(t, name, got.Mul(got, big.NewRat(1, 1000000)).FloatString(15), want.FloatString(15))
	}
	check.Equal(t, "the number of bills", n, 42)
}

// A part without a price has its neighbor's, in a tier and a step before those of the row.
func TestPartsHaveTheirNeighborsPrices(t *testing.T) {
	const row = "input=2 output=10 cache_write=3 audio_input=40 search=0.01 input@1000=4 output@1000=20 " +
		"input@5000=8 audio_input@5000=80 flex.=0.5 priority.=2 priority.input=5 priority.search=0.02 " +
		"priority.input@2000=6 vip.=3"
	for _, c := range []struct {
		rates, tier, part string
		n, input          int64 // of the part, and beside it
		want              string
	}{
		{row, "", "cache_read", 1, 0, "2"}, {row, "", "cache_write_1h", 1, 0, "3"},
		{row, "", "image_input", 1, 0, "2"}, {row, "", "audio_cache_read", 1, 0, "40"},
		{row, "", "audio_output", 1, 0, "10"}, {row, "", "image_output", 1, 0, "10"},
		{row, "", "request", 1, 0, "0"}, {row, "", "search", 1, 0, "10000"},
		{"input=2 output=3 cache_read=1", "", "audio_cache_read", 1, 0, "1"},
		{"input=2 output=3", "", "audio_cache_read", 1, 0, "2"},
		{row, "", "input", 1000, 0, "2"}, {row, "", "input", 1001, 0, "4"},
		{row, "", "cache_write", 1001, 0, "4"}, {row, "", "audio_input", 1001, 0, "4"},
		{row, "", "output", 1, 1000, "10"}, {row, "", "output", 1, 1001, "20"},
		{row, "", "input", 5001, 0, "8"}, {row, "", "audio_cache_read", 5001, 0, "80"},
		{row, "", "output", 1, 5001, "10"},
		{row, "flex", "input", 1, 0, "1"}, {row, "flex", "search", 1, 0, "10000"},
		{row, "flex", "input", 1001, 0, "2"}, {row, "priority", "cache_read", 1, 0, "5"},
		{row, "priority", "output", 1, 0, "20"}, {row, "priority", "search", 1, 0, "20000"},
		{row, "priority", "input", 1001, 0, "5"}, {row, "priority", "output", 1, 1001, "40"},
		{row, "priority", "cache_write_1h", 2001, 0, "6"}, {row, "vip", "input", 5001, 0, "24"},
		{row, "batch", "input", 1, 0, "2"}, {row, "standard", "input", 1, 0, "2"},
		{row, "priority.input", "input", 1, 0, "2"},
	} {
		p := priceWith(t, ratesOf(c.rates))
		parts := option.Parts{option.Input: c.input}
		without := p.Cost(parts, c.tier)
		parts[slices.Index(option.PartNames[:], c.part)] += c.n
		got := p.Cost(parts, c.tier)
		got.Mul(got.Sub(got, without), big.NewRat(1, c.n))
		check.Equal(t, fmt.Sprint(c.tier, " ", c.n, " ", c.part, " beside ", c.input), got.RatString(),
			c.want)
	}
}

// A cost is exact, and rounded up once to a billionth. All tokens of a request with a long input have the
// prices of its step. An estimate is the dearest that a request may become.
func TestCostsAreExact(t *testing.T) {
	const m = "input=2.5 cache_read=1.25 cache_write=3.125 output=10 input@200000=5 cache_read@200000=2.5 " +
		"cache_write@200000=6.25 output@200000=15 request=0.0001 flex.=0.5 priority.=2"
	const tiny = "input=0.1 output=0.000001"
	for _, c := range []struct {
		rates string
		parts option.Parts
		want  int64
	}{
		{m, option.Parts{}, 0},
		{m, option.Parts{option.Input: 100, option.CacheRead: 50, option.CacheWrite: 8, option.Output: 7},
			407500},
		{m, option.Parts{option.Input: 200000, option.Output: 1}, 500010000},
		{m, option.Parts{option.Input: 199999, option.CacheRead: 1, option.CacheWrite: 1, option.Output: 1},
			1000018750},
		{tiny, option.Parts{option.Input: 1, option.CacheRead: 1, option.CacheWrite: 1}, 300},
		{tiny, option.Parts{option.Output: 1}, 1}, {tiny, option.Parts{option.Output: 1001}, 2},
		{"input=1000000000 output=0", option.Parts{option.Input: 1 << 53}, 1 << 53 * 1000},
	} {
		got := policy.Billionths(priceWith(t, ratesOf(c.rates)).Cost(c.parts, ""))
		check.Equal(t, fmt.Sprint(c.rates, c.parts), got, c.want)
	}
	p := priceWith(t, ratesOf(m))
	for asked, want := range map[string]string{"": "3325 standard", "flex": "3325 standard",
		"priority": "6550 priority", "other": "3325 standard"} {
		parts, tier, cost := p.Estimate(1000, 10, asked)
		check.Equal(t, "the estimate for "+asked, cost.RatString()+" "+tier, want)
		check.Equal(t, "the cost of its parts", p.Cost(parts, tier).RatString(), cost.RatString())
		check.Equal(t, "the dearer tier", p.Dearer(parts, asked), tier)
	}
}
