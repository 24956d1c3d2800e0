package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
)

// checkOut writes the files of a commit into a new folder below b.dir.
func (b *bench) checkOut(repository, commit string) (folder string) {
	archive := filepath.Join(b.dir, "before.tar")
	folder = filepath.Join(b.dir, "before")
	for _, args := range [][]string{
		{"git", "-C", repository, "archive", "--prefix", "before/", "-o", archive, commit},
		{"tar", "-xf", archive, "-C", b.dir},
	} {
		if out, err := exec.CommandContext(b.ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			check(fmt.Errorf("%s: %w: %s", args[0], err, out))
		}
	}
	return folder
}

// maxLowerRatio is the highest lower end of a ratio's interval with which a version counts as not worse.
const maxLowerRatio = 1.03

// besideBefore returns copies of the rows of pg_ratelimit. The base of each copy is the same row in the base
// version. Paced rows are left out, because versions are compared by their CPU.
func besideBefore(rows []*row) (pairs []*row) {
	for _, r := range rows {
		if !r.isOwnLimit() || r.load.rate > 0 {
			continue
		}
		before, now := *r, *r
		before.name, before.ofBaseVersion, before.base = r.name+", before", true, nil
		now.base, now.memory, now.redis = &before, nil, nil
		pairs = append(pairs, &now)
	}
	return pairs
}
