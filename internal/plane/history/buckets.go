package history

import (
	"math"
	"time"
)

// lastBucket is the index of the bucket for durations above 52.4288 s. Bucket i holds durations up to
// 0.1 ms · 2^(i/4).
const lastBucket = 77

// noneInBuckets has a 0 for each bucket.
var noneInBuckets [lastBucket + 1]int64

// addDuration counts the duration of a decision in its bucket. A loop would be slow in Yaegi.
func addDuration(c *cell, d time.Duration) {
	const first = 100 * time.Microsecond
	n := 0
	if d > first {
		// The logarithm of a power of two is exact.
		n = int(math.Ceil(4 * math.Log2(float64(d)/float64(first))))
	}
	if n > lastBucket {
		n = lastBucket
	}
	if n >= len(c.durations) {
		c.durations = append(c.durations, noneInBuckets[len(c.durations):n+1]...)
	}
	c.durations[n]++
}
