//go:build !linux

package main

import (
	"context"
	"errors"
)

func (pacedLoad) run(context.Context) (pacedResult, error) {
	return pacedResult{}, errors.New("needs Linux")
}
