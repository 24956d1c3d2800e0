package algorithm

import (
	"math"
	"math/bits"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// window returns the limit's Window in microseconds. All arithmetic here uses microseconds, the resolution of
// Postgres timestamps.
func window(l *ratelimit.Limit) int64 { return int64(l.Window) / 1000 }

// fit returns the number of hits of the given cost, at most n, that fit into free.
func fit(free, n, cost int64) int64 {
	if free < cost {
		return 0
	}
	if granted := free / cost; granted < n {
		return granted
	}
	return n
}

func smaller(a, b int64) int64 {
	if a < b {
		return a
	}
	return b
}

func larger(a, b int64) int64 {
	if a > b {
		return a
	}
	return b
}

// mulDiv returns a·b/c for 0 ≤ a, 0 ≤ b, 0 < c, rounded down, or up if up is set. It computes the product
// with 128 bits. If the quotient exceeds an int64, mulDiv returns math.MaxInt64.
func mulDiv(a, b, c int64, up bool) int64 {
	high, low := bits.Mul64(uint64(a), uint64(b))
	if up {
		var carry uint64
		low, carry = bits.Add64(low, uint64(c-1), 0)
		high += carry
	}
	if high >= uint64(c) {
		return math.MaxInt64
	}
	quotient, _ := bits.Div64(high, low, uint64(c))
	if quotient > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(quotient)
}
