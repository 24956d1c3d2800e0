package history

import (
	"math"
	"time"
)

// Latencies are counted in buckets whose bounds grow by the factor 1.04, so that the buckets of
// several proxies and minutes can be added, and the value of a bucket is wrong by 2 % at most.
const maxBuckets = 512

// bucketsPerE is how many buckets there are to a growth by e: 1 / ln 1.04.
const bucketsPerE = 25.496731691028337

// BucketOf returns the number of a latency's bucket. Bucket 0 is up to 1 µs, and bucket i from
// 1.04^(i-1), excluded, to 1.04^i µs, up to bucket 511.
func BucketOf(d time.Duration) int {
	if d <= time.Microsecond {
		return 0
	}
	i := int(math.Ceil(math.Log(float64(d)/1000) * bucketsPerE))
	if i >= maxBuckets {
		return maxBuckets - 1
	}
	return i
}
