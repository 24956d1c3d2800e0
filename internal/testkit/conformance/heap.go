package conformance

import (
	"runtime"
	"testing"
)

// CheckHeapGrowth fails the test if f grows the heap by more than bound bytes. alive stays reachable until
// the check.
func CheckHeapGrowth(t testing.TB, bound int64, alive any, f func()) {
	t.Helper()
	before := heapInUse()
	f()
	if kept := heapInUse() - before; kept > bound {
		t.Errorf("%d bytes of the heap stay in use, want at most %d", kept, bound)
	}
	runtime.KeepAlive(alive)
}

func heapInUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // the first one may keep the values of a sync.Pool
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
