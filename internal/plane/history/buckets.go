package history

import (
	"math"
	"sort"
	"time"
)

// Latencies are counted in buckets whose bounds grow by the factor 1.04, so that the buckets of
// several proxies and minutes can be added, and the value of a bucket is wrong by 2 % at most.
const maxBuckets = 512

// bucketEnds are the longest latencies of the buckets, in nanoseconds.
var bucketEnds = makeBucketEnds()

func makeBucketEnds() []float64 {
	ends := make([]float64, maxBuckets)
	for i := range ends {
		ends[i] = 1000 * math.Pow(1.04, float64(i))
	}
	ends[maxBuckets-1] = math.Inf(1)
	return ends
}

// BucketOf returns the number of a latency's bucket. Bucket 0 is up to 1 µs, and bucket i from
// 1.04^(i-1), excluded, to 1.04^i µs, up to bucket 511.
func BucketOf(d time.Duration) int { return sort.SearchFloat64s(bucketEnds, float64(d)) }
