package main

import "testing"

// A tag that is not a version such as v1.2.3 stops the release, because Traefik's catalog refuses a
// repository with such a tag.
func TestInvalidTagStopsRelease(t *testing.T) {
	if err := checkTags([]string{"v0.1.0", "v1.12.3"}); err != nil {
		t.Errorf("checkTags of versions: %v, want no error", err)
	}
	for _, tag := range []string{"v0.1", "1.0.1", "V0.2.2", "v.1.6.0", "nightly", "v0.3.0rc1",
		"v0.1.0-rc.1", "v01.0.0"} {
		if checkTags([]string{"v0.1.0", tag}) == nil {
			t.Errorf("checkTags accepts the tag %s, want an error", tag)
		}
	}
}
