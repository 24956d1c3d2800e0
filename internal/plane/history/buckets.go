package history

import (
	"math"
	"time"
)

// Latencies are counted in buckets whose bounds grow by the same factor, so that the buckets of
// several proxies and minutes can be added, and the value of a bucket is wrong by 2 % at most.
const (
	bucketGrowth = 1.04
	maxBuckets   = 512
)

// bucketsPerE is how many buckets there are to a growth by e: 1 / ln 1.04.
const bucketsPerE = 25.496703193009345

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

// Quantile returns the latency below or at which the share p of all latencies is, wrong by 2 % at
// most: p is from 0 to 1, and 0.5 is the median. It is 0 if there are none. buckets are counts, by
// BucketOf.
func Quantile(buckets []int64, p float64) time.Duration {
	total := int64(0)
	for _, n := range buckets {
		total += n
	}
	if total <= 0 {
		return 0
	}
	rank := int64(math.Ceil(p * float64(total)))
	if rank < 1 {
		rank = 1
	}
	if rank > total {
		rank = total
	}
	sum := int64(0)
	at := 0
	for i, n := range buckets {
		sum += n
		if sum >= rank {
			at = i
			break
		}
	}
	if at == 0 {
		return time.Microsecond
	}
	return time.Duration(2000 * math.Pow(bucketGrowth, float64(at)) / (bucketGrowth + 1))
}
