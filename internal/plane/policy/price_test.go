package policy_test

import (
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
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
	prices := policy.NewPrices([]policy.Price{price("gpt-4o*", "1", 0, 0),
		price("gpt-4o-mini", "2", 0, 0), price("gpt-*", "3", 0, 0), price("new", "4", 0, 0),
		price("new", "5", day, 0), price("old*", "6", 0, day), price("o*", "7", 0, 0),
		price("\u212a*", "8", 0, 0)})
	prices.At = day
	for model, want := range map[string]string{"gpt-4o": "1", "GPT-4o": "1", "gpt-4o-mini": "2",
		"gpt-4o-mini-2024": "1", "gpt-5": "3", "gpt-4o*": "1", "\tGPT-4O-MINI\u00a0": "2",
		" ": "-", "kimi": "-", "\u212aIMI": "8", "new": "5", "old-1": "7", "claude": "-", "": "-", "*": "-"} {
		got := "-"
		if p := prices.Of(model); p != nil {
			got = p.Rates["input"]
		}
		check.Equal(t, model, got, want)
	}
	prices.At--
	check.Equal(t, "before the day", prices.Of("new").Rates["input"], "4")
	check.Equal(t, "before the end", prices.Of("old-1").Rates["input"], "6")
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
func priceWith(rates map[string]string) *policy.Price {
	p := &policy.Price{Rates: rates}
	p.Prepare()
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
		got := priceWith(prices[a.PriceOf]).Cost(parts, a.Tier)
		check.Equal(t, name, got.Mul(got, big.NewRat(1, 1000000)).FloatString(15), want.FloatString(15))
	}
	check.Equal(t, "the number of bills", n, 42)
}

// What parts of a request cost. The lines of the transcript are:
//
// rates RATES                the prices of the next lines; the result is nothing
// part TIER N PART beside I  what one of N units of a part costs more beside an input of I, in millionths
// cost PARTS                 in billionths, rounded up
// estimate TIER              in millionths, and the tier that may become the dearest
func TestPartsCostTheirPrices(t *testing.T) {
	var p *policy.Price
	golden.ReplayLines(t, "testdata/prices/*.txt", func(t *testing.T, kind, text string) string {
		words := strings.Fields(text)
		switch kind {
		case "rates":
			p = priceWith(ratesOf(text))
			return ""
		case "cost":
			var parts option.Parts
			for name, n := range ratesOf(text) {
				parts[slices.Index(option.PartNames[:], name)] = number(t, n)
			}
			return fmt.Sprint(policy.Billionths(p.Cost(parts, "")))
		case "estimate":
			parts, tier, cost := p.Estimate(1000, 10, text)
			check.Equal(t, "the cost of its parts", p.Cost(parts, tier).RatString(), cost.RatString())
			check.Equal(t, "the dearer tier", p.Dearer(parts, text), tier)
			return cost.RatString() + " " + tier
		}
		tier, n, parts := strings.TrimPrefix(words[0], "-"), number(t, words[1]), option.Parts{}
		parts[option.Input] = number(t, words[4])
		without := p.Cost(parts, tier)
		parts[slices.Index(option.PartNames[:], words[2])] += n
		more := p.Cost(parts, tier)
		return more.Mul(more.Sub(more, without), big.NewRat(1, n)).RatString()
	})
}

// number returns the whole number that a text is.
func number(t *testing.T, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
