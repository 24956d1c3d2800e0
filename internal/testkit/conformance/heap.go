package conformance

import (
	"runtime"
	"testing"
)

// Keeps fails a test if do leaves more than so many bytes of the heap in use, while what is alive.
func Keeps(t testing.TB, most int64, what any, do func()) {
	t.Helper()
	before := heapInUse()
	do()
	if kept := heapInUse() - before; kept > most {
		t.Errorf("%d bytes of the heap stay in use, want at most %d", kept, most)
	}
	runtime.KeepAlive(what)
}

func heapInUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // the first one may leave what sync.Pool holds
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
