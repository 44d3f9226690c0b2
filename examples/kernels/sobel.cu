// Edges of a grey image. sobel.ptx is what `nvcc -ptx -arch=sm_80` makes of this file.

// edges[y][x] = strength of the gradient at pixel (x, y), by Sobel's two 3 x 3 filters; 0 on the border.
extern "C" __global__ void sobel(const float *__restrict__ image, float *__restrict__ edges, unsigned height,
                                 unsigned width) {
    const unsigned x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    float strength = 0.0f;
    if (x > 0 && y > 0 && x + 1 < width && y + 1 < height) {
        const float *above = image + (size_t)(y - 1) * width + x, *here = above + width, *below = here + width;
        const float across = above[1] - above[-1] + 2 * (here[1] - here[-1]) + below[1] - below[-1];
        const float down = below[-1] - above[-1] + 2 * (below[0] - above[0]) + below[1] - above[1];
        strength = sqrtf(across * across + down * down);
    }
    edges[(size_t)y * width + x] = strength;
}
