package policy

import (
	"math/big"
	"sort"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Price is a row of rate_limit_prices. It is immutable.
//
// A request has prices of its tier: those of the last step that its input exceeds, else of the step before,
// and so on, else those without a step; else prices of the row, in the same order. On each of these levels, a
// part without a price has the price of its neighbor, if that has one there. The factor of the tier
// multiplies the prices of the row.
type Price struct {
	// Model is the name of a model, or if it ends in "*", the pattern of the names that begin with the rest.
	Model string
	// Valid is the column of this name, or "" if the price always holds.
	Valid string
	// The price holds from From until before Until, in microseconds since the Unix epoch. 0 sets no bound.
	From, Until int64
	// Rates has decimal numbers: the prices of a million tokens, or of one search or request, by PART,
	// PART@N, TIER.PART and TIER.PART@N, where the input exceeds N tokens; and the factor of a tier by
	// "TIER.".
	Rates map[string]string
	// MaxOutput is the largest output of the model, or 0 if it is unknown.
	MaxOutput int64
	// Free reports that all prices are 0.
	Free bool

	writes bool               // what is written to a cache may have another price than other input
	levels map[string][]level // by tier, those of the longest input first; "" is any other tier
}

// level has the exact prices of a tier for requests whose input is longer than above.
type level struct {
	above int64
	rates []*big.Rat // by part, in millionths for each; nil is 0
}

// StandardServiceTier is the tier that requests have without another one. The ledger leaves it out.
const StandardServiceTier = "standard"

// million is the number of tokens that a price is for.
var million = big.NewRat(1000000, 1)

// neighbors has for each part the parts with the prices that it may have, after its own.
var neighbors = [option.PartCount][]int{
	option.CacheRead:      {option.Input},
	option.CacheWrite:     {option.Input},
	option.CacheWrite1h:   {option.CacheWrite, option.Input},
	option.AudioInput:     {option.Input},
	option.AudioCacheRead: {option.AudioInput, option.CacheRead, option.Input},
	option.AudioOutput:    {option.Output},
	option.ImageInput:     {option.Input},
	option.ImageOutput:    {option.Output},
}

// Prepare sets what follows from Rates.
func (p *Price) Prepare() {
	p.Free = true
	steps := map[string][]int64{"": {0}} // by tier
	for name, rate := range p.Rates {
		tier, part := "", name
		if at := strings.IndexByte(name, '.'); at >= 0 {
			tier, part = name[:at], name[at+1:]
		}
		step := int64(0)
		if at := strings.IndexByte(part, '@'); at >= 0 {
			step, _ = strconv.ParseInt(part[at+1:], 10, 64) // a constraint checks it
			part = part[:at]
		}
		steps[tier] = append(steps[tier], step)
		if p.Free && contains(option.PartNames[:], part) && strings.Trim(rate, "0.") != "" {
			p.Free = false
		}
	}
	p.levels = map[string][]level{}
	for tier, own := range steps {
		all := append(append([]int64{}, own...), steps[""]...)
		sort.Slice(all, func(i, j int) bool { return all[i] > all[j] })
		for i, step := range all {
			if i == 0 || step < all[i-1] {
				rates := p.ratesOf(tier, all[i:])
				p.levels[tier] = append(p.levels[tier], level{step, rates})
				p.writes = p.writes || rates[option.Input] == nil || rates[option.CacheWrite] == nil ||
					rates[option.Input].Cmp(rates[option.CacheWrite]) != 0
			}
		}
	}
}

// ratesOf returns the prices of a tier for input above all of steps, of which the last is 0.
func (p *Price) ratesOf(tier string, steps []int64) []*big.Rat {
	prefixes := []string{tier + ".", ""} // of the names in Rates
	if tier == "" {
		prefixes = prefixes[1:]
	}
	factor, hasFactor := new(big.Rat).SetString(p.Rates[tier+"."])
	rates := make([]*big.Rat, option.PartCount)
	for part := range option.PartNames {
		text, prefix := p.rateOf(part, prefixes, steps)
		rate, ok := new(big.Rat).SetString(text)
		if !ok {
			continue
		}
		if part >= option.Search {
			rate.Mul(rate, million)
		} else if prefix == "" && hasFactor {
			rate.Mul(rate, factor)
		}
		rates[part] = rate
	}
	return rates
}

// rateOf returns the price of a part, and the prefix of its name. A search or a request may have none.
func (p *Price) rateOf(part int, prefixes []string, steps []int64) (string, string) {
	for _, prefix := range prefixes {
		for _, step := range steps {
			suffix := ""
			if step > 0 {
				suffix = "@" + strconv.FormatInt(step, 10)
			}
			for _, other := range append([]int{part}, neighbors[part]...) {
				if rate := p.Rates[prefix+option.PartNames[other]+suffix]; rate != "" {
					return rate, prefix
				}
			}
		}
	}
	return "", ""
}

// Cost returns the exact cost of parts in a tier, in millionths. Requests call it, so it makes few calls.
func (p *Price) Cost(parts option.Parts, tier string) *big.Rat {
	levels := p.levels[tier]
	if levels == nil {
		levels = p.levels[""]
	}
	at := 0
	if len(levels) > 1 {
		input := parts.InputTokens()
		for at < len(levels)-1 && input <= levels[at].above {
			at++
		}
	}
	sum := new(big.Rat)
	for part, rate := range levels[at].rates {
		if rate != nil && parts[part] > 0 {
			cost := new(big.Rat).SetInt64(parts[part])
			if cost.Mul(cost, rate); sum.Sign() != 0 { // Add would take long
				cost.Add(cost, sum)
			}
			sum = cost
		}
	}
	return sum
}

// Dearer returns the tier, of standard and the asked one, in which parts cost more.
func (p *Price) Dearer(parts option.Parts, asked string) string {
	if asked == "" || asked == StandardServiceTier ||
		p.Cost(parts, asked).Cmp(p.Cost(parts, StandardServiceTier)) <= 0 {
		return StandardServiceTier
	}
	return asked
}

// Estimate returns what a request with tokens of input and output may cost at most, in an asked tier or the
// standard one, and whatever part of its input is written to a cache; and that tier and cost.
func (p *Price) Estimate(input, output int64, asked string) (option.Parts, string, *big.Rat) {
	var most option.Parts
	var cost *big.Rat
	dearer := StandardServiceTier
	tiers := []string{StandardServiceTier}
	if asked != "" {
		tiers = append(tiers, asked)
	}
	kinds := []int{option.Input}
	if p.writes {
		kinds = append(kinds, option.CacheWrite)
	}
	for _, part := range kinds {
		parts := option.Parts{option.Output: output, option.Request: 1}
		parts[part] = input
		for _, tier := range tiers {
			if c := p.Cost(parts, tier); cost == nil || c.Cmp(cost) > 0 {
				most = parts
				dearer = tier
				cost = c
			}
		}
	}
	return most, dearer, cost
}

// Billionths returns a cost in millionths as a number of billionths, rounded up, at most that of
// ratelimit.MaxEvents.
func Billionths(cost *big.Rat) int64 {
	const most = int64(ratelimit.MaxEvents) * 1000
	whole, rest := big.NewInt(1000), new(big.Int)
	whole.QuoRem(whole.Mul(whole, cost.Num()), cost.Denom(), rest)
	if !whole.IsInt64() || whole.Int64() >= most {
		return most
	}
	n := whole.Int64()
	if rest.Sign() > 0 {
		n++
	}
	return n
}

// Total adds up costs, and rounds their sum once. The zero Total is 0.
type Total struct {
	Billionths int64 // the sum, rounded up
	exact      big.Rat
}

// Add adds a cost in millionths, and returns what it adds to Billionths.
func (t *Total) Add(cost *big.Rat) int64 {
	before := t.Billionths
	t.Billionths = Billionths(t.exact.Add(&t.exact, cost))
	return t.Billionths - before
}

// Prices finds the prices of models at one moment. The zero Prices has none.
type Prices struct {
	list *priceList
	At   int64 // in microseconds since the Unix epoch
}

// priceList has all prices. It is immutable.
type priceList struct {
	exact    map[string][]*Price // by name; the price that began last comes first
	patterns []string            // the longest first
	free     []*Price            // those that are Free
}

// NewPrices compiles prices, which it keeps and sorts. The caller sets At.
func NewPrices(rows []Price) Prices {
	list := &priceList{exact: map[string][]*Price{}}
	sort.SliceStable(rows, func(i, j int) bool { return rows[i].From > rows[j].From })
	for i := range rows {
		p := &rows[i]
		p.Prepare()
		if p.Free {
			list.free = append(list.free, p)
		}
		if list.exact[p.Model] == nil && strings.HasSuffix(p.Model, "*") {
			list.patterns = append(list.patterns, p.Model)
		}
		list.exact[p.Model] = append(list.exact[p.Model], p)
	}
	patterns := list.patterns
	sort.SliceStable(patterns, func(i, j int) bool { return len(patterns[i]) > len(patterns[j]) })
	return Prices{list: list}
}

// Of returns the price of a model, or nil if it has none. A name goes before patterns, and a longer pattern
// before a shorter one.
func (p Prices) Of(model string) *Price {
	if model = option.ModelName(model); model == "" || p.list == nil {
		return nil
	}
	if !strings.HasSuffix(model, "*") {
		if price := priceAt(p.list.exact[model], p.At); price != nil {
			return price
		}
	}
	for _, pattern := range p.list.patterns {
		if strings.HasPrefix(model, pattern[:len(pattern)-1]) {
			if price := priceAt(p.list.exact[pattern], p.At); price != nil {
				return price
			}
		}
	}
	return nil
}

func priceAt(prices []*Price, at int64) *Price {
	for _, p := range prices {
		if p.From <= at && (p.Until == 0 || at < p.Until) {
			return p
		}
	}
	return nil
}

// PricesAt returns the prices of a snapshot at the time at, in microseconds since the Unix epoch.
func PricesAt(s *Snapshot, at int64) Prices { return Prices{s.prices, at} }

// Prices returns the prices in force.
func (p *Policy) Prices() Prices {
	now := Prices{At: p.settings.Now().UnixMicro()}
	if s := p.snapshot(); s != nil {
		now.list = s.prices
	}
	return now
}

// HasFree reports whether a price is in force that is Free.
func (p *Policy) HasFree() bool {
	s := p.snapshot()
	return s != nil && priceAt(s.prices.free, p.settings.Now().UnixMicro()) != nil
}
