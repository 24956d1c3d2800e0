package policy

import (
	"math/big"
	"sort"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Price is a row of rate_limit_prices. It is immutable.
type Price struct {
	// Model is the name of a model, or if it ends in "*", the pattern of the names that begin with the rest.
	Model string
	// The price holds from From until before Until, in microseconds since the Unix epoch. 0 sets no bound.
	From, Until int64
	// Rates has the prices of a million tokens as decimal numbers: input, input from a cache, input that is
	// written to one, and output. AboveRates holds instead if there are more than Above tokens of input. It
	// is empty without such prices.
	Rates, AboveRates []string
	Above             int64
	// MaxOutput is the largest output of the model, or 0 if it is unknown.
	MaxOutput int64

	rates, aboveRates []*big.Rat
}

// Cost returns the cost of tokens in millionths, rounded up, at most ratelimit.MaxEvents. The kinds of tokens
// do not overlap.
func (p *Price) Cost(input, cacheRead, cacheWrite, output int64) int64 {
	rates := p.rates
	if p.aboveRates != nil && input+cacheRead+cacheWrite > p.Above {
		rates = p.aboveRates
	}
	sum := new(big.Rat)
	for kind, n := range []int64{input, cacheRead, cacheWrite, output} {
		one := new(big.Rat).SetInt64(n)
		sum.Add(sum, one.Mul(one, rates[kind]))
	}
	whole, rest := new(big.Int).QuoRem(sum.Num(), sum.Denom(), new(big.Int))
	cost := int64(ratelimit.MaxEvents)
	if whole.IsInt64() && whole.Int64() < cost {
		cost = whole.Int64()
		if rest.Sign() > 0 {
			cost++
		}
	}
	return cost
}

// Estimate returns what a request with tokens of input and output may cost: whatever part of its input is
// written to a cache.
func (p *Price) Estimate(input, output int64) int64 {
	cost := p.Cost(input, 0, 0, output)
	if written := p.Cost(0, 0, input, output); written > cost {
		cost = written
	}
	return cost
}

// priceList finds the prices of models.
type priceList struct {
	exact    map[string][]*Price // by name; the price that began last comes first
	patterns []string            // the longest first
}

// newPriceList compiles prices, which it keeps and sorts.
func newPriceList(rows []Price) *priceList {
	list := &priceList{exact: map[string][]*Price{}}
	sort.SliceStable(rows, func(i, j int) bool { return rows[i].From > rows[j].From })
	for i := range rows {
		p := &rows[i]
		p.rates = parseRates(p.Rates)
		p.aboveRates = parseRates(p.AboveRates)
		if p.rates == nil {
			continue // impossible: constraints check the rows
		}
		if list.exact[p.Model] == nil && strings.HasSuffix(p.Model, "*") {
			list.patterns = append(list.patterns, p.Model)
		}
		list.exact[p.Model] = append(list.exact[p.Model], p)
	}
	patterns := list.patterns
	sort.SliceStable(patterns, func(i, j int) bool { return len(patterns[i]) > len(patterns[j]) })
	return list
}

// parseRates parses prices, or returns nil if there are none.
func parseRates(texts []string) []*big.Rat {
	var rates []*big.Rat
	for _, text := range texts {
		rate, ok := new(big.Rat).SetString(text)
		if !ok {
			return nil
		}
		rates = append(rates, rate)
	}
	return rates
}

// PriceOf returns the price of a model at the time at, in microseconds since the Unix epoch, or nil if it has
// none. A name goes before patterns, and a longer pattern before a shorter one.
func PriceOf(s *Snapshot, model string, at int64) *Price {
	if model == "" {
		return nil
	}
	list := s.prices
	model = lowerASCII.Replace(model)
	if !strings.HasSuffix(model, "*") {
		if p := priceAt(list.exact[model], at); p != nil {
			return p
		}
	}
	for _, pattern := range list.patterns {
		if strings.HasPrefix(model, pattern[:len(pattern)-1]) {
			if p := priceAt(list.exact[pattern], at); p != nil {
				return p
			}
		}
	}
	return nil
}

func priceAt(prices []*Price, at int64) *Price {
	for _, p := range prices {
		if p.From <= at && at < endOf(p.Until) {
			return p
		}
	}
	return nil
}

// PriceOf is like the function PriceOf, with the prices in force.
func (p *Policy) PriceOf(model string) *Price {
	s := p.snapshot()
	if s == nil {
		return nil
	}
	return PriceOf(s, model, p.settings.Now().UnixMicro())
}
