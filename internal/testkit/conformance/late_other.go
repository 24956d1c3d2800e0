//go:build !unix

package conformance

import "testing"

func testLateProcess(t *testing.T, _ openDB) { t.Skip("processes cannot be stopped here") }

func testSessionsHang(t *testing.T, _ openDB) { t.Skip("processes cannot be stopped here") }
