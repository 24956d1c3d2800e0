package history

import (
	"math/bits"
	"time"
)

// bounds is the number of bounds between latency buckets. The bounds double from 0.1 ms to 52.4288 s.
const bounds = 20

// BucketOf returns the index of the bucket for a latency. Bucket i holds latencies up to 0.1 ms · 2^i, and
// bucket 20 holds latencies above the last bound.
func BucketOf(d time.Duration) int {
	if d <= 0 {
		return 0
	}
	n := bits.Len64(uint64(d-1) / uint64(100*time.Microsecond))
	if n > bounds {
		return bounds
	}
	return n
}
