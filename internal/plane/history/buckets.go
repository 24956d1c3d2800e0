package history

import (
	"math/bits"
	"time"
)

// lastBucket is the index of the bucket for latencies above all bounds. The 20 buckets before it have upper
// bounds that double from 0.1 ms to 52.4288 s.
const lastBucket = 20

// BucketOf returns the index of the bucket for a latency. Bucket i holds latencies up to 0.1 ms · 2^i, and
// bucket 20 holds all longer ones.
func BucketOf(d time.Duration) int {
	if d <= 0 {
		return 0
	}
	n := bits.Len64(uint64(d-1) / uint64(100*time.Microsecond))
	if n > lastBucket {
		return lastBucket
	}
	return n
}
